//! Compilation of every kernel for each distinct source of the supported architectures. Needs NVRTC but no
//! GPU. With PLIMSOLL_NEED_NVRTC set, the absence of NVRTC is a failure.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "in tests, a panic is the report of a failure"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use device::cuda::{architecture, compile, compiler_is_there};
use device::{DType, Family};
use tensor::ops::{DTYPES, FAMILIES};

/// The supported compute capabilities, newest first.
const CHIPS: [(u32, u32); 7] = [(12, 0), (10, 0), (9, 0), (8, 9), (8, 6), (8, 0), (7, 5)];

/// The chip without bf16.
const WITHOUT_BF16: (u32, u32) = (7, 5);

/// Evaluates the conditions on the architecture in a family's source and headers for a chip.
///
/// Chips with equal conditions compile equal source. Features of the oldest of them exist in the newer.
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

/// Chips for which a variant is compiled: with PLIMSOLL_LONG_TESTS all, otherwise one per distinct source. Of
/// variants that define the same constants, such as other head widths, only the last is compiled. The first
/// kind of variant is compiled for each source, others for the oldest chip that has code for them. Variants
/// in f16 repeat those in bf16 and are compiled for the chip without bf16.
fn chips(family: &Family, variant: usize) -> Vec<(u32, u32)> {
    if std::env::var_os("PLIMSOLL_LONG_TESTS").is_some() {
        return CHIPS.to_vec();
    }
    let constants = |variant: usize| -> BTreeSet<&str> {
        family.variants[variant].iter().map(|(name, _)| *name).collect()
    };
    let kind = constants(variant);
    let is_last = !(variant + 1..family.variants.len()).any(|later| constants(later) == kind);
    if !is_last {
        return Vec::new();
    }
    let has_more = ["GENERAL", "WINDOWED", "PIECE", "DROPPED"].into_iter().any(|name| kind.contains(name));
    let sources: BTreeMap<_, _> = CHIPS.iter().map(|chip| (conditions(family, *chip), *chip)).collect();
    let of_sources = CHIPS.into_iter().filter(|chip| sources.values().any(|oldest| oldest == chip));
    let has_variant = |chip: &(u32, u32)| match kind.contains("HALF_IS_F16") {
        true => *chip == WITHOUT_BF16 && !has_more && has_code(family, *chip),
        false => kind == constants(0) || has_code(family, *chip),
    };
    let mut chips: Vec<_> = of_sources.filter(has_variant).collect();
    if kind != constants(0) {
        chips.drain(..chips.len().saturating_sub(1));
    }
    chips
}

/// Returns whether a family's f16 variants have code for a chip, by the first condition of its source.
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

/// Machine code, or the error of the compiler.
type Code = Result<Vec<u8>, String>;

/// Returns a variant's machine code for a chip, compiled once for all tests.
fn machine_code(family: &Family, variant: usize, chip: (u32, u32)) -> Arc<OnceLock<Code>> {
    type Compiled = BTreeMap<(&'static str, usize, (u32, u32)), Arc<OnceLock<Code>>>;
    static COMPILED: Mutex<Compiled> = Mutex::new(BTreeMap::new());
    let code = Arc::clone(COMPILED.lock().unwrap().entry((family.name, variant, chip)).or_default());
    code.get_or_init(|| {
        compile(family, variant, &architecture(chip))
            .map_err(|error| format!("{} {variant} for {}: {error}", family.name, architecture(chip)))
    });
    code
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
                    let failure = match machine_code(family, *variant, *chip).wait() {
                        Ok(code) if code.starts_with(b"\x7fELF") => continue,
                        Ok(_) => format!("{} is no machine code", family.name),
                        Err(error) => error.clone(),
                    };
                    failures.lock().unwrap().push(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns the names of the kernels in machine code, from their sections `.text.<name>`.
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
            let symbols = symbols(machine_code(family, 0, chip).wait().as_ref().unwrap());
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
