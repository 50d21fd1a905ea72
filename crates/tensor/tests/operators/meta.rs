use device::{Description, Device, DeviceOptions};

use crate::scenario::{Sizes, every_operator};

#[test]
fn meta_allocates_what_the_cpu_does_operator_by_operator() {
    let figures = |device: Device| {
        let mut figures = vec![];
        for sizes in [
            Sizes { batch: 2, time: 17, width: 12, heads: 3, vocab: 31 },
            Sizes { batch: 3, time: 70, width: 66, heads: 2, vocab: 1000 },
        ] {
            every_operator(&device, &sizes, |operator, _| {
                let now = device.statistics();
                let bytes = [now.allocated(), now.peak_allocated(), now.reserved(), now.peak_reserved()];
                figures.push((operator, bytes, now.get("allocation.all.allocated")));
            });
        }
        figures
    };
    let cpu = figures(Device::cpu(0, &DeviceOptions::default()).unwrap());
    let meta = figures(Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap());
    assert_eq!(cpu, meta);
    assert!(cpu.iter().all(|(_, bytes, count)| bytes[0] > 0 && count.is_some_and(|count| count > 0)));
}

#[test]
fn outputs_are_all_that_is_allocated() {
    let sizes = Sizes { batch: 2, time: 65, width: 24, heads: 2, vocab: 100 };
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let count = |device: &Device| device.statistics().get("allocation.all.allocated").unwrap_or(0);
    let operand = crate::support::operand(&device, "qkv", [sizes.batch, sizes.time, 3 * sizes.width]).0;
    let before = count(&device);
    let made = tensor::ops::attention::forward(&operand, sizes.heads).unwrap();
    assert_eq!(count(&device) - before, 2);
    let dy = crate::support::operand(&device, "dy", [sizes.batch, sizes.time, sizes.width]).0;
    let before = count(&device);
    tensor::ops::attention::backward(&dy, &operand, &made.output, &made.logsumexp, sizes.heads).unwrap();
    assert_eq!(count(&device) - before, 1);
    let weight = crate::support::operand(&device, "w", [7, sizes.width]).0;
    for (activation, allocations) in [
        (tensor::ops::Activation::None, 1),
        (tensor::ops::Activation::Relu, 1),
        (tensor::ops::Activation::Gelu, 2),
    ] {
        let before = count(&device);
        tensor::ops::linear::forward(&dy, &weight, None, activation).unwrap();
        assert_eq!(count(&device) - before, allocations, "{activation:?}");
    }
}
