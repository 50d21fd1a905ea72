//! Marks in the compute stream's work.

use std::time::{Duration, Instant};

use device::{Category, Description, Device, DeviceOptions, Request, cuda};

fn devices() -> Vec<Device> {
    let options = DeviceOptions::default();
    let mut devices =
        vec![Device::cpu(0, &options).unwrap(), Device::meta(0, Description::host(), &options).unwrap()];
    match cuda::availability() {
        Ok(_) => devices.push(Device::cuda(0, 0, &[], &options).unwrap()),
        Err(why) => system::skipped::report(system::skipped::Need::Gpu, &why.to_string()),
    }
    devices
}

#[test]
fn work_is_timed_between_marks() {
    const BYTES: usize = 64 << 20;
    for device in devices() {
        let buffer = device.allocate(BYTES, Request::new(Category::Other, "test")).unwrap();
        device.zero(buffer.region(0, BYTES)).unwrap();
        device.synchronize().unwrap();
        let began = Instant::now();
        let mut marks = vec![device.mark().unwrap()];
        for rounds in [1, 20] {
            (0..rounds).for_each(|_| device.zero(buffer.region(0, BYTES)).unwrap());
            marks.push(device.mark().unwrap());
        }
        device.synchronize().unwrap();
        let whole = began.elapsed();
        let between = |from: usize, to: usize| marks[from].until(&marks[to]).unwrap().unwrap();
        let one = between(0, 1);
        let twenty = between(1, 2);
        let all = between(0, 2);
        assert!(
            one + twenty <= whole + Duration::from_micros(50),
            "{device:?}: {one:?} {twenty:?} {whole:?}"
        );
        let off = (one + twenty).abs_diff(all);
        assert!(off <= Duration::from_micros(5), "{device:?}: {one:?} + {twenty:?} and not {all:?}");
        if !device.is_meta() {
            assert!(twenty > Duration::ZERO && one > Duration::ZERO, "{device:?}: {one:?}, {twenty:?}");
        }
        assert_eq!(between(1, 1), Duration::ZERO);
    }
}

#[test]
fn marks_of_different_backends_have_no_time_between_them() {
    let devices = devices();
    let first = devices[0].mark().unwrap();
    for device in &devices[2..] {
        assert_eq!(first.until(&device.mark().unwrap()).unwrap(), None);
    }
    // On the host a mark is reached at once, and time does not run backwards.
    let second = devices[0].mark().unwrap();
    assert!(first.until(&second).unwrap().is_some());
    assert_eq!(second.until(&first).unwrap(), Some(Duration::ZERO));
}
