//! dump
#![allow(missing_docs, clippy::unwrap_used)]
fn main() {
    let out = std::env::args().nth(1).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    for f in tensor::ops::FAMILIES.iter().copied() {
        for v in 0..f.variants.len() {
            for chip in [(8, 0), (9, 0)] {
                let a = device::cuda::architecture(chip);
                let c = device::cuda::compile(f, v, &a).unwrap();
                std::fs::write(format!("{out}/{}-{v}-{a}.cubin", f.name), c).unwrap();
            }
        }
    }
}
