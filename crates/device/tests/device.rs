//! Buffers, borrow rules, and the allocator's counters, on every available backend.

use half::bf16;

use device::{Backend, Category, Description, Device, DeviceError, DeviceOptions, Request, StreamKind};

fn devices(options: &DeviceOptions) -> Vec<Device> {
    let mut devices =
        vec![Device::cpu(3, options).unwrap(), Device::meta(3, Description::host(), options).unwrap()];
    match device::cuda::availability() {
        Ok(_) => {
            let cuda = Device::cuda(3, 0, &[], options).unwrap();
            devices.push(Device::meta(3, cuda.description().clone(), options).unwrap());
            devices.push(cuda);
        }
        Err(why) => system::skipped::report(system::skipped::Need::Gpu, &why.to_string()),
    }
    devices
}

fn request() -> Request {
    Request::new(Category::Other, "test")
}

#[test]
fn a_region_has_many_readers_or_one_writer() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let buffer = device.allocate(64, request()).unwrap();
    let first = buffer.read::<f32>(0, 8).unwrap();
    let second = buffer.read::<f32>(16, 8).unwrap();
    assert!(matches!(buffer.write::<f32>(28, 4), Err(DeviceError::Aliased { access: "write", .. })));
    let mut apart = buffer.write::<f32>(48, 4).unwrap();
    apart[0] = 2.0;
    assert!(matches!(buffer.read::<f32>(60, 1), Err(DeviceError::Aliased { access: "read", .. })));
    drop((first, second, apart));
    assert_eq!(buffer.write::<f32>(0, 16).unwrap()[12], 2.0);
}

#[test]
fn out_of_bounds_and_misaligned_regions_are_refused() {
    let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
    let buffer = device.allocate(10, request()).unwrap();
    let refused =
        |offset, len| matches!(buffer.read::<f32>(offset, len), Err(DeviceError::OutOfBounds { .. }));
    assert!(
        refused(0, 3) && refused(2, 1) && refused(8, 1) && refused(usize::MAX, 1) && refused(0, usize::MAX)
    );
    assert!(buffer.read::<f32>(4, 1).is_ok());
    let four = buffer.region(0, 4);
    assert!(matches!(device.copy_from_host(&[1.0_f32; 2], four), Err(DeviceError::Length { .. })));
    assert!(device.zero(buffer.region(0, 3)).is_ok());
    assert!(device.zero(buffer.region(8, 3)).is_err());
}

#[test]
fn host_and_device_copies() {
    for device in devices(&DeviceOptions::default()) {
        let a = device.allocate(400, request()).unwrap();
        let b = device.allocate(400, request()).unwrap();
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        device.copy_from_host(&values, a.region(0, 400)).unwrap();
        device.copy(a.region(0, 200), b.region(200, 200)).unwrap();
        device.zero(b.region(0, 200)).unwrap();
        let mut back = vec![-1.0_f32; 100];
        device.copy_to_host(b.region(0, 400), &mut back).unwrap();
        let expected: Vec<f32> = match device.backend() {
            Backend::Cpu | Backend::Cuda => {
                (0..100).map(|i| if i < 50 { 0.0 } else { (i - 50) as f32 }).collect()
            }
            Backend::Meta => vec![0.0; 100],
        };
        assert_eq!(back, expected);
        if device.backend() != Backend::Cpu {
            assert!(matches!(a.read::<f32>(0, 1), Err(DeviceError::NotOnHost { .. })));
        }
    }
}

/// Pinned memory grows with the copies, and the last copy is longer than its largest size.
#[test]
fn copies_of_all_lengths_keep_their_values() {
    const LENGTHS: [usize; 8] = [3, 300_000, 5, 4_000_001, 20_000_000, 7, 4_000_001, 70_000_001];
    for device in devices(&DeviceOptions::default()) {
        let value = |copy: usize, index: usize| ((index * 31 + copy) % 65_521) as f32;
        let values = |copy: usize| (0..LENGTHS[copy]).map(|index| value(copy, index)).collect::<Vec<_>>();
        let copied: Vec<_> = (0..LENGTHS.len())
            .map(|copy| {
                let buffer = device.allocate(4 * LENGTHS[copy], request()).unwrap();
                device.copy_from_host(&values(copy), buffer.region(0, 4 * LENGTHS[copy])).unwrap();
                buffer
            })
            .collect();
        for (copy, buffer) in copied.iter().enumerate() {
            let mut back = vec![-1.0_f32; LENGTHS[copy]];
            device.copy_to_host(buffer.region(0, 4 * LENGTHS[copy]), &mut back).unwrap();
            let is_meta = device.backend() == Backend::Meta;
            let differs = back.iter().zip(values(copy)).position(|(one, other)| *one != other && !is_meta);
            assert_eq!(differs, None, "copy {copy}");
        }
    }
}

#[test]
fn buffers_may_be_dropped_on_another_thread() {
    for device in devices(&DeviceOptions::default()) {
        let before = device.statistics();
        let buffers: Vec<_> = (1..50).map(|i| device.allocate(1000 * i, request()).unwrap()).collect();
        std::thread::spawn(move || drop(buffers)).join().unwrap();
        assert_eq!(device.statistics().allocated(), before.allocated());
        device.empty_cache().unwrap();
        assert_eq!(device.statistics().reserved(), before.reserved());
    }
}

#[test]
fn out_of_memory_errors_name_rank_operator_and_bytes() {
    let options = DeviceOptions { limit_bytes: Some(40 << 20), ..DeviceOptions::default() };
    for device in devices(&options) {
        let buffer = device.allocate(1 << 20, request()).unwrap();
        let error =
            device.allocate(60 << 20, Request::new(Category::Activation, "linear.forward")).unwrap_err();
        let DeviceError::Allocation { rank: 3, operator: "linear.forward", bytes, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*bytes, 60 << 20);
        let text = error.to_string();
        assert!(text.contains("rank 3") && text.contains("linear.forward"), "{text}");
        assert_eq!(device.statistics().num_ooms, 1);
        drop(buffer);
    }
}

#[test]
fn empty_buffers_allocate_nothing() {
    for device in devices(&DeviceOptions::default()) {
        let before = device.statistics().reserved();
        let none = device.allocate(0, request()).unwrap();
        assert_eq!((none.bytes(), device.statistics().reserved()), (0, before));
    }
}

#[test]
fn modules_label_allocations_and_streams_have_their_own_blocks() {
    for device in devices(&DeviceOptions::default()) {
        device.with_allocator(|allocator| allocator.record_history(100));
        let segments_before = device.with_allocator(|allocator| allocator.snapshot().segments.len());
        let outer = device.module("h.0");
        let inner = device.module("mlp_fc");
        let first = device.allocate(512, request()).unwrap();
        drop(inner);
        let second = device.allocate(512, request().on(StreamKind::Reduce)).unwrap();
        drop(outer);
        let (labels, segments) = device.with_allocator(|allocator| {
            let snapshot = allocator.snapshot();
            let events = snapshot.events.iter().filter(|event| event.action == memory::Action::Alloc);
            let labels: Vec<_> =
                events.map(|event| snapshot.labels.name(event.tag.module).to_owned()).collect();
            (labels, snapshot.segments.len())
        });
        assert_eq!(labels, ["h.0.mlp_fc", "h.0"]);
        assert_eq!(segments - segments_before, 2);
        let event = device.record(StreamKind::Reduce).unwrap();
        device.wait(StreamKind::Compute, &event).unwrap();
        assert_eq!((event.stream(), event.sequence()), (StreamKind::Reduce, 0));
        drop((first, second));
    }
}

#[test]
fn expandable_segments_hold_real_memory() {
    let settings = memory::Settings::parse("expandable_segments:True").unwrap();
    let device = Device::cpu(0, &DeviceOptions { settings, ..DeviceOptions::default() }).unwrap();
    let first = device.allocate(30 << 20, request()).unwrap();
    device.copy_from_host(&vec![1.5_f32; 30 << 18], first.region(0, 30 << 20)).unwrap();
    assert_eq!(first.read::<f32>((30 << 20) - 4, 1).unwrap()[0], 1.5);
    drop(first);
    device.empty_cache().unwrap();
    assert_eq!(device.statistics().reserved(), 0);
    // Pages that are mapped again read as zero.
    let again = device.allocate(30 << 20, request()).unwrap();
    assert!(again.read::<f32>(0, 30 << 18).unwrap().iter().all(|value| *value == 0.0));
}

#[test]
fn a_device_unmaps_memory_while_another_of_the_same_gpu_captures() {
    let settings = memory::Settings::parse("expandable_segments:True").unwrap();
    let options = DeviceOptions { settings, ..DeviceOptions::default() };
    let open = |rank| device::cuda::availability().map(|_| Device::cuda(rank, 0, &[], &options).unwrap());
    let (captures, unmaps) = match (open(0), open(1)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(why), _) | (_, Err(why)) => {
            return system::skipped::report(system::skipped::Need::Gpu, &why.to_string());
        }
    };
    let zeroed = captures.allocate(64, request()).unwrap();
    captures.begin_capture().unwrap();
    captures.zero(zeroed.region(0, 64)).unwrap();
    drop(unmaps.allocate(30 << 20, request()).unwrap());
    unmaps.empty_cache().unwrap();
    captures.zero(zeroed.region(0, 64)).unwrap();
    let captured = captures.end_capture().unwrap();
    assert!(matches!(captured, device::Captured::Whole(parts) if parts.len() == 1));
    captures.synchronize().unwrap();
}

#[test]
fn values_are_rounded_while_they_are_copied() {
    // More than all blocks of pinned memory, and no multiple of one.
    let values: Vec<f32> = (0..9_000_001).map(|index: i32| 0.37 * index as f32 - 1e6).collect();
    for device in devices(&DeviceOptions::default()).iter().filter(|device| device.backend() != Backend::Meta)
    {
        let target = device.allocate(2 * values.len(), request()).unwrap();
        for _ in 0..2 {
            device.round_from_host::<bf16>(&values, target.region(0, 2 * values.len())).unwrap();
        }
        let mut rounded = vec![bf16::ZERO; values.len()];
        device.copy_to_host(target.region(0, 2 * values.len()), &mut rounded).unwrap();
        assert!(rounded.iter().zip(&values).all(|(rounded, value)| *rounded == bf16::from_f32(*value)));
    }
}
