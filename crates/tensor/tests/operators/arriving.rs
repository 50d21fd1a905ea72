//! Tensors that another stream fills.

use device::{Category, Device, Request, StreamKind};
use tensor::{DType, Tensor, ops};

use crate::support::{cpu, gpu, meta};

fn tensor(device: &Device, elements: usize, value: f32) -> Tensor {
    Tensor::from_host(device, &vec![value; elements], [elements], Category::Parameter).unwrap()
}

#[test]
fn the_first_access_waits_for_the_copy() {
    let touch: [fn(&Tensor); 6] = [
        |tensor| assert_eq!(tensor.region().bytes, 32),
        |tensor| assert_eq!(tensor.view(2, [3]).unwrap().region().bytes, 12),
        |tensor| drop(tensor.to_vec::<f32>().unwrap()),
        |tensor| tensor.set(&[2.0_f32; 8]).unwrap(),
        |tensor| drop(tensor.reshape([2, 4]).unwrap().read::<f32>()),
        |tensor| drop(tensor.write::<f32>()),
    ];
    let host = cpu();
    for device in [meta(host.description()), host] {
        let pair = || [tensor(&device, 8, 0.0), tensor(&device, 8, 1.0)];
        for touch in touch {
            let [first, second] = pair();
            let other = tensor(&device, 8, 2.0);
            let arrival = device.arrival(StreamKind::Reduce).unwrap();
            first.arrives(&arrival);
            second.arrives(&arrival);
            // Access to a shape or to another tensor does not wait.
            assert_eq!((first.shape().elements(), second.bytes()), (8, 32));
            touch(&other);
            assert!(first.is_arriving() && second.is_arriving() && device.take_waits().is_empty());
            touch(&first);
            assert!(!first.is_arriving() && second.is_arriving());
            assert_eq!(device.take_waits().len(), 1);
            touch(&first);
            touch(&second);
            assert!(!second.is_arriving() && device.take_waits().is_empty(), "they come together");
        }
        // Freed memory is reused in the order of the compute stream.
        let [gone, _] = pair();
        gone.arrives(&device.arrival(StreamKind::Reduce).unwrap());
        drop(gone);
        assert_eq!(device.take_waits().len(), 1);
    }
}

/// Copies of 256 MiB delay the other stream for longer than compute needs to read the old values.
#[test]
fn a_gpu_computes_with_what_arrives() {
    const LARGE: usize = 64 << 20;
    const MOST_COPIES: usize = 5120;
    let Some(device) = gpu() else { return };
    let large =
        |name| Tensor::zeros(&device, [LARGE], DType::F32, Request::new(Category::Other, name)).unwrap();
    let from = large("from");
    let to = large("to");
    let (new, weight, sum) =
        (tensor(&device, 5000, 3.0), tensor(&device, 5000, 1.0), tensor(&device, 5000, 4.0));
    let readers: [&dyn Fn() -> Vec<f32>; 3] = [
        &|| weight.to_vec().unwrap(),
        &|| {
            sum.copy_from(&weight).unwrap();
            sum.to_vec().unwrap()
        },
        &|| {
            sum.zero().unwrap();
            ops::add::into(&sum, &weight).unwrap();
            sum.to_vec().unwrap()
        },
    ];
    let arrives_behind = |copies: usize, reader: &dyn Fn() -> Vec<f32>| {
        weight.set(&[1.0_f32; 5000]).unwrap();
        let before = device.record(StreamKind::Compute).unwrap();
        device.wait(StreamKind::Reduce, &before).unwrap();
        (0..copies).for_each(|_| to.copy_from_on(&from, StreamKind::Reduce).unwrap());
        weight.copy_from_on(&new, StreamKind::Reduce).unwrap();
        weight.arrives(&device.arrival(StreamKind::Reduce).unwrap());
        assert_eq!(reader(), [3.0; 5000]);
        let [(StreamKind::Reduce, begin, end)] = &device.take_waits()[..] else { panic!("one wait") };
        begin.until(end).unwrap().unwrap()
    };
    for reader in readers {
        let mut copies = 40;
        while arrives_behind(copies, reader).as_micros() < 500 {
            copies *= 2;
            assert!(copies <= MOST_COPIES, "the other stream was not held up");
        }
    }
}
