//! Host memory that a device fills without blocking the host.

use std::thread;

use device::{
    Category, Description, Device, DeviceError, DeviceOptions, HostBuffer, Request, StreamKind, cuda,
};

const ELEMENTS: usize = 1 << 20;

fn devices() -> Vec<Device> {
    let options = DeviceOptions::default();
    let mut devices = vec![Device::cpu(0, &options).unwrap()];
    match cuda::availability() {
        Ok(_) => devices.push(Device::cuda(0, 0, &[], &options).unwrap()),
        Err(why) => system::skipped::report(system::skipped::Need::Gpu, &why.to_string()),
    }
    devices
}

/// Returns host memory of a device, allocated on another thread.
fn memory(device: &Device, bytes: usize) -> HostBuffer {
    let allocate = device.host_memory();
    thread::spawn(move || allocate(bytes)).join().unwrap()
}

/// A copy has the values of when it was enqueued, although the device then writes others and another thread
/// reads it. The regions have two lengths and are more than a stream's queue holds.
#[test]
fn copies_have_the_values_before_them() {
    for device in devices() {
        let request = Request::new(Category::Other, "test");
        let buffer = device.allocate(4 * ELEMENTS, request).unwrap();
        let lengths = [16, 4 * ELEMENTS / 2048 - 16];
        let region = |number: usize| {
            let start = number / 2 * (lengths[0] + lengths[1]) + number % 2 * lengths[0];
            (buffer.region(start, lengths[number % 2]), start)
        };
        let copies: Vec<_> = (0..4096).map(region).collect();
        let mut host = memory(&device, 4 * ELEMENTS);
        for round in 0..3u32 {
            let values = vec![round; ELEMENTS];
            device.copy_from_host(&values, buffer.region(0, 4 * ELEMENTS)).unwrap();
            let copied = device.copy_to_host_buffer(&copies, &mut host).unwrap();
            device.wait_shared(StreamKind::Compute, &copied).unwrap();
            device.zero(buffer.region(0, 4 * ELEMENTS)).unwrap();
            let read = move || {
                let is_equal = host.bytes().unwrap().chunks(4).all(|word| word == round.to_le_bytes());
                assert!(host.is_filled().unwrap());
                (host, is_equal)
            };
            let (back, is_equal) = thread::spawn(read).join().unwrap();
            assert!(is_equal, "{device:?}, round {round}");
            host = back;
        }
    }
}

#[test]
fn copies_beyond_the_memory_are_refused() {
    for device in devices() {
        let buffer = device.allocate(16, Request::new(Category::Other, "test")).unwrap();
        let mut host = memory(&device, 12);
        for (region, start) in
            [(buffer.region(0, 16), 0), (buffer.region(0, 8), 8), (buffer.region(8, 16), 0)]
        {
            let refused = device.copy_to_host_buffer(&[(region, start)], &mut host);
            assert!(matches!(refused, Err(DeviceError::OutOfBounds { .. })), "{device:?}: {refused:?}");
        }
        assert!(device.copy_to_host_buffer(&[(buffer.region(8, 8), 4)], &mut host).is_ok());
    }
}

#[test]
fn meta_takes_no_host_memory() {
    let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
    let buffer = device.allocate(1 << 30, Request::new(Category::Other, "test")).unwrap();
    let mut host = memory(&device, 1 << 30);
    device.copy_to_host_buffer(&[(buffer.region(0, 1 << 30), 0)], &mut host).unwrap();
    assert!(host.is_empty() && host.is_filled().unwrap());
}

/// Values are copied to a pool and back behind work of other streams. The host reads them once they have
/// arrived, and the pool's bytes are counted apart from the device's.
#[test]
fn a_pool_has_the_values_that_streams_copy_to_it() {
    for device in devices() {
        let pool = device.host_pool().unwrap();
        let request = Request::new(Category::Other, "test");
        let before = device.statistics().allocated();
        let away = pool.allocate(4 * ELEMENTS, request).unwrap();
        assert_eq!((device.statistics().allocated(), pool.statistics().allocated()), (before, 4 << 20));
        let buffers = [0, 1].map(|_| device.allocate(4 * ELEMENTS, request).unwrap());
        let [source, target] = [0, 1].map(|index| buffers[index].region(0, 4 * ELEMENTS));
        let kept = away.region(0, 4 * ELEMENTS);
        for round in 1..4u32 {
            device.copy_from_host(&vec![round; ELEMENTS], source).unwrap();
            let written = device.record(StreamKind::Compute).unwrap();
            device.wait(StreamKind::Snapshot, &written).unwrap();
            device.copy_to_pool(source, kept, StreamKind::Snapshot).unwrap();
            pool.fill_until(device.record(StreamKind::Snapshot).unwrap());
            device.wait_for_pool(&pool, StreamKind::Input).unwrap();
            device.copy_from_pool(kept, target, StreamKind::Input).unwrap();
            let arrived = device.record(StreamKind::Input).unwrap();
            let mut values = vec![0; ELEMENTS];
            pool.copy_to_host(kept, &mut values).unwrap();
            assert!(values.iter().all(|value| *value == round));
            device.wait(StreamKind::Compute, &arrived).unwrap();
            device.copy_to_host(target, &mut values).unwrap();
            assert!(values.iter().all(|value| *value == round));
        }
        let short = device.copy_from_pool(away.region(0, 4), target, StreamKind::Input);
        assert!(matches!(short, Err(DeviceError::Length { .. })));
    }
    // Meta counts what a pool of a real device does.
    let meta = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap().host_pool().unwrap();
    let _held = meta.allocate(30 << 20, Request::new(Category::Other, "test")).unwrap();
    let cpu = Device::cpu(0, &DeviceOptions::default()).unwrap().host_pool().unwrap();
    let _also = cpu.allocate(30 << 20, Request::new(Category::Other, "test")).unwrap();
    assert_eq!(meta.statistics().peak_reserved(), cpu.statistics().peak_reserved());
}
