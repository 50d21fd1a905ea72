use device::{Category, DType, Device};
use tensor::Tensor;
use tensor::ops::hash;

use crate::support::{cpu, devices};

/// Returns the sum after the device added the hash of `tensor` to `before`.
fn added(tensor: &Tensor, before: u64) -> u64 {
    let words = [before as u32, (before >> 32) as u32];
    let sum = Tensor::from_host(tensor.device(), &words, [hash::WORDS], Category::Other).unwrap();
    hash::add_to(&sum, tensor).unwrap();
    hash::value_of(&sum.to_vec::<u32>().unwrap())
}

fn values(device: &Device, values: &[f32]) -> Tensor {
    Tensor::from_host(device, values, [values.len()], Category::Parameter).unwrap()
}

#[test]
fn devices_agree_with_the_host() {
    for case in devices() {
        for elements in [1, 33, 4099, 1_100_003] {
            let (tensor, _) = case.operand("hashed", [elements]);
            let mut bytes = vec![0; tensor.bytes()];
            tensor.read_bytes(&mut bytes).unwrap();
            let expected = hash::sum_of(&bytes, tensor.dtype().bytes(), 0);
            assert_eq!(hash::of_part(&tensor, 0).unwrap(), expected, "{elements} {}", case.name());
            for before in [0, 1, u64::MAX - 5] {
                let sum = expected.wrapping_add(before);
                assert_eq!(added(&tensor, before), sum, "{elements} {} {before}", case.name());
            }
        }
    }
    let bytes = Tensor::for_host(&cpu(), [3], DType::E4m3, Category::Other).unwrap();
    bytes.set_bytes(&[1, 0, 255]).unwrap();
    assert_eq!(added(&bytes, 0), hash::sum_of(&[1, 0, 255], 1, 0));
}

#[test]
fn shards_add_up_and_every_bit_counts() {
    let device = cpu();
    let numbers: Vec<f32> = (0..200_001).map(|number| number as f32 * 0.37).collect();
    let whole = values(&device, &numbers);
    let sum = hash::of_part(&whole, 0).unwrap();
    let shards = [0..7, 7..131_072, 131_072..200_001]
        .map(|range| hash::of_part(&whole.view(range.start, [range.len()]).unwrap(), range.start).unwrap());
    assert_eq!(shards.into_iter().fold(0, u64::wrapping_add), sum);
    for (element, bit) in [(0, 0), (7, 31), (131_071, 17), (200_000, 5)] {
        let mut changed = numbers.clone();
        changed[element] = f32::from_bits(changed[element].to_bits() ^ 1 << bit);
        whole.set(&changed).unwrap();
        assert_ne!(hash::of_part(&whole, 0).unwrap(), sum, "bit {bit} of element {element}");
    }
    // Exchanged elements count too.
    let mut exchanged = numbers.clone();
    exchanged.swap(3, 4);
    whole.set(&exchanged).unwrap();
    assert_ne!(hash::of_part(&whole, 0).unwrap(), sum);
    // SplitMix64's first output for the seed 0.
    assert_eq!(hash::mixed(0, 0), 0xe220_a839_7b1d_cdaf);
}
