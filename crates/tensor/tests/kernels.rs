//! Compilation of every kernel for each source that the supported architectures have. Needs NVRTC and no
//! GPU; with PLIMSOLL_NEED_NVRTC set, the absence of NVRTC is a failure.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "in tests, a panic is the report of a failure"
)]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::cuda::{architecture, compile, compiler_is_there};
use device::{DType, Family};
use tensor::ops::{DTYPES, FAMILIES};

/// The supported compute capabilities, newest first.
const CHIPS: [(u32, u32); 7] = [(12, 0), (10, 0), (9, 0), (8, 9), (8, 6), (8, 0), (7, 5)];

/// The chip that has no bf16.
const WITHOUT_BF16: (u32, u32) = (7, 5);

/// Conditions on the architecture in a family's source and headers, and whether they hold for a chip.
///
/// Chips with equal conditions compile equal source; what the oldest of them has, the newer have too.
fn conditions(family: &Family, (major, minor): (u32, u32)) -> BTreeMap<String, bool> {
    let texts = family.headers.iter().map(|(_, text)| *text).chain([family.source]);
    let lines = texts.flat_map(str::lines).map(str::trim).filter(|line| line.starts_with("#if"));
    let holds = |line: &str| match line.split_once("__CUDA_ARCH__ >= ") {
        Some((_, rest)) => {
            let oldest: u32 = rest.split_whitespace().next().unwrap().parse().unwrap();
            100 * major + 10 * minor >= oldest
        }
        None if line.contains("__CUDA_ARCH_FEAT_SM90_ALL") => (major, minor) == (9, 0),
        None => panic!("{}: no known condition on the architecture: {line}", family.name),
    };
    lines.filter(|line| line.contains("__CUDA_ARCH")).map(|line| (line.to_owned(), holds(line))).collect()
}

/// Chips for which a variant is compiled: one for each source, or all if PLIMSOLL_LONG_TESTS is set. Variants
/// in f16 are those in bf16 with another type, and are compiled only for the chip without bf16. General
/// variants, and those for windows, pieces and dropout, are the others with more code: they are compiled only
/// for the oldest chip that has any of it, and in f16 not.
fn chips(family: &Family, variant: usize) -> Vec<(u32, u32)> {
    let mut chips = CHIPS.to_vec();
    if std::env::var_os("PLIMSOLL_LONG_TESTS").is_none() {
        let sources: BTreeMap<_, _> = CHIPS.iter().map(|chip| (conditions(family, *chip), *chip)).collect();
        chips.retain(|chip| sources.values().any(|oldest| oldest == chip));
        let has = |wanted: &str| family.variants[variant].iter().any(|(name, _)| *name == wanted);
        let has_more = ["GENERAL", "WINDOWED", "PIECE", "DROPPED"].into_iter().any(has);
        if has("HALF_IS_F16") {
            chips.retain(|chip| *chip == WITHOUT_BF16 && !has_more && has_code(family, *chip));
        } else if has_more {
            let oldest = chips.iter().rposition(|chip| has_code(family, *chip));
            chips.drain(..oldest.unwrap_or(0));
        }
    }
    chips
}

/// Returns whether a family's variants in f16 have code for a chip, by the first condition of its source.
fn has_code(family: &Family, chip: (u32, u32)) -> bool {
    let first = family.source.lines().find(|line| line.starts_with("#if") && line.contains("__CUDA_ARCH"));
    first.is_none_or(|line| line.contains("HALF_IS_F16") || conditions(family, chip)[line])
}

fn compiler_or_skip() -> bool {
    let there = compiler_is_there();
    assert!(there || std::env::var_os("PLIMSOLL_NEED_NVRTC").is_none(), "libnvrtc.so cannot be opened");
    if !there {
        system::skipped::report(system::skipped::Need::Other("NVRTC"), "libnvrtc.so cannot be opened");
    }
    there
}

fn machine_code(family: &Family, variant: usize, chip: (u32, u32)) -> Result<Vec<u8>, String> {
    compile(family, variant, &architecture(chip))
        .map_err(|error| format!("{} {variant} for {}: {error}", family.name, architecture(chip)))
}

#[test]
fn every_kernel_compiles_for_each_source_of_the_architectures() {
    if !compiler_or_skip() {
        return;
    }
    let jobs: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| (0..family.variants.len()).map(move |variant| (*family, variant)))
        .flat_map(|(family, variant)| {
            chips(family, variant).into_iter().map(move |chip| (family, variant, chip))
        })
        .collect();
    assert!(!jobs.is_empty());
    // Compilation times differ by a factor of a hundred, so each thread takes the next job when it is done.
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((family, variant, chip)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match machine_code(family, *variant, *chip) {
                        Ok(code) if code.starts_with(b"\x7fELF") => {}
                        Ok(_) => failures.lock().unwrap().push(format!("{} is no machine code", family.name)),
                        Err(error) => failures.lock().unwrap().push(error),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Names of the kernels in machine code, each of which has a section `.text.<name>`.
fn symbols(code: &[u8]) -> Vec<String> {
    const SECTION: &[u8] = b"\0.text.";
    let starts = code.windows(SECTION.len()).enumerate().filter(|(_, window)| *window == SECTION);
    let name = |(start, _): (usize, &[u8])| {
        let name = code[start + SECTION.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    };
    starts.map(name).collect()
}

#[test]
fn kernels_are_instantiated_for_the_types_that_operators_compute_with() {
    if !compiler_or_skip() {
        return;
    }
    const NAMES: [&str; 10] = [
        "activation",
        "add",
        "cast",
        "embedding",
        "layer_norm",
        "linear",
        "mse",
        "scale",
        "tree",
        "spaced_tree",
    ];
    for name in NAMES {
        let family = FAMILIES.iter().find(|family| family.name == name).unwrap();
        for (chip, expected) in [((8, 0), DTYPES), ((7, 5), &[DType::F32, DType::F16])] {
            let symbols = symbols(&machine_code(family, 0, chip).unwrap());
            let has = |dtype: &DType| symbols.iter().any(|symbol| symbol.ends_with(&format!("_{dtype}")));
            let actual: Vec<DType> = DType::ALL.iter().copied().filter(has).collect();
            assert_eq!(actual, expected, "{name} for {chip:?} has {symbols:?}");
        }
    }
}

#[test]
fn hopper_kernels_use_hopper_instructions() {
    for (capability, name) in [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100")]
    {
        assert_eq!(architecture(capability), name);
    }
}
