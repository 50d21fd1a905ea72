//! Every kernel compiles for every architecture that is served. No GPU is needed, only NVRTC, which the README's test
//! command fetches; with PLIMSOLL_NEED_NVRTC set, its absence is a failure.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "in tests, a panic is the report of a failure"
)]

use device::cuda::{architecture, compile, compiler_is_there};
use tensor::ops::FAMILIES;

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if !compiler_is_there() {
        assert!(std::env::var_os("PLIMSOLL_NEED_NVRTC").is_none(), "libnvrtc.so cannot be opened");
        eprintln!("skipped: libnvrtc.so cannot be opened");
        return;
    }
    let jobs: Vec<_> = FAMILIES
        .iter()
        .flat_map(|family| (0..family.variants.len()).map(move |variant| (*family, variant)))
        .flat_map(|(family, variant)| [(8, 0), (9, 0), (10, 0)].map(|chip| (family, variant, chip)))
        .collect();
    assert!(!jobs.is_empty());
    std::thread::scope(|scope| {
        for jobs in jobs.chunks(jobs.len().div_ceil(2)) {
            scope.spawn(move || {
                for (family, variant, chip) in jobs {
                    let cubin = compile(family, *variant, &architecture(*chip)).unwrap_or_else(|error| {
                        panic!("{} {variant} for {}: {error}", family.name, architecture(*chip))
                    });
                    assert!(cubin.starts_with(b"\x7fELF"), "{} is machine code", family.name);
                }
            });
        }
    });
}

#[test]
fn architectures_have_their_own_instructions_where_the_chip_has_some() {
    for (capability, name) in [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100")]
    {
        assert_eq!(architecture(capability), name);
    }
}
