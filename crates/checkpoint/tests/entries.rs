//! Arrays of every element type are restored as written, and errors name mismatches.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in tests, a panic is the report of a failure")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, Contents, Index, LossScale, Snapshot, Target, Validations, Writer, newest};
use device::{Category, DType, Device, DeviceOptions, Element, HostBuffer, bf16, f16};
use safetensors::{Dtype, SafeTensors};
use tensor::{Shape, Tensor};

type Failed = Box<dyn std::error::Error>;

/// An array of a checkpoint.
struct Written {
    name: &'static str,
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn written<T: Element>(name: &'static str, shape: &[usize], values: &[T]) -> Written {
    let bytes = bytemuck::cast_slice(values).to_vec();
    Written { name, dtype: T::DTYPE, shape: shape.to_vec(), bytes }
}

fn shared() -> Contents {
    Contents {
        keep: 1,
        configuration: BTreeMap::new(),
        libraries: String::new(),
        base: None,
        corpus: None,
        before: Arc::new(|| Ok(())),
        reference_sha256: Arc::default(),
        left_out: Vec::new(),
    }
}

/// Writes and opens a checkpoint after one step, with these arrays and one loss.
fn checkpoint(run_dir: &Path, arrays: &[Written]) -> Checkpoint {
    std::fs::write(run_dir.join("metrics.jsonl"), "").unwrap();
    let mut writer = Writer::new(run_dir, shared());
    let mut snapshot = writer.begin();
    let mut bytes = Vec::new();
    for array in arrays {
        assert_eq!(snapshot.add(array.name.to_owned(), array.dtype, &array.shape), bytes.len());
        bytes.extend(&array.bytes);
    }
    snapshot.add_losses(1);
    snapshot.set_losses(&[0.5]);
    fill(&mut snapshot, &bytes);
    writer.write(snapshot, 1, Validations::default(), false);
    writer.finish().unwrap();
    newest(run_dir).unwrap().unwrap()
}

/// Copies `bytes` to a snapshot's memory.
fn fill(snapshot: &mut Snapshot, bytes: &[u8]) {
    assert_eq!(snapshot.memory_bytes(), bytes.len());
    let memory = snapshot.fit(HostBuffer::ordinary);
    memory.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
}

fn state(checkpoint: &Checkpoint) -> Vec<u8> {
    std::fs::read(checkpoint.path().join("state.safetensors")).unwrap()
}

fn device() -> Device {
    Device::cpu(0, &DeviceOptions::default()).unwrap()
}

fn target<T: Element>(name: &str, dtype: DType, shape: &[usize], fill: T) -> Target {
    let values = vec![fill; shape.iter().product()];
    let shape: Shape = match shape {
        [length] => [*length].into(),
        [rows, columns] => [*rows, *columns].into(),
        _ => panic!("{shape:?}"),
    };
    let tensor = Tensor::from_host(&device(), &values, shape, Category::Buffer).unwrap();
    Target::whole(name.to_owned(), dtype, tensor)
}

fn load(checkpoint: &Checkpoint, target: &Target) -> Result<Vec<u8>, Failed> {
    checkpoint.load::<Failed>(std::iter::once(target.clone()))?;
    let mut bytes = vec![0; target.tensor.bytes()];
    target.tensor.read_bytes(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn every_element_type_is_restored_to_the_bit() {
    let halves = [bf16::NEG_INFINITY, bf16::from_bits(1), bf16::NAN];
    // More than one piece of a file, and no multiple of one.
    let many: Vec<f32> = (0..200_003).map(|i| (i as f32).sin()).collect();
    let arrays = [
        written("mean", &[3], &[1.5f32, f32::NAN, -0.0]),
        written("many", &[200_003], &many),
        written("count", &[2, 2], &[0u32, 1, u32::MAX, 7]),
        written("table", &[3], &halves),
        written("half", &[1, 2], &[f16::from_f32(0.1), f16::INFINITY]),
        written("codes", &[5], &[0u8, 1, 127, 128, 255]),
    ];
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(directory.path(), &arrays);
    for Written { name, dtype, shape, bytes } in &arrays {
        let target = match *dtype {
            DType::F32 => target(name, *dtype, shape, 9.0f32),
            DType::U32 => target(name, *dtype, shape, 9u32),
            DType::Bf16 => target(name, *dtype, shape, bf16::ONE),
            DType::U8 => target(name, *dtype, shape, 9u8),
            _ => target(name, *dtype, shape, f16::ONE),
        };
        assert!(load(&checkpoint, &target).unwrap() == *bytes, "{name}");
    }
    assert_eq!(checkpoint.losses().unwrap(), [0.5]);
    let bytes = state(&checkpoint);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let types = arrays.each_ref().map(|array| file.tensor(array.name).unwrap().dtype());
    assert_eq!(types, [Dtype::F32, Dtype::F32, Dtype::U32, Dtype::BF16, Dtype::F16, Dtype::U8]);
}

/// A range of an array can be read into a shorter tensor, and f32 values are rounded to its narrower
/// floating-point type.
#[test]
fn parts_are_read_and_masters_are_rounded() {
    let values = [1.0f32, 1.003_906_3, -2.5, 65_536.0];
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(directory.path(), &[written("w", &[2, 2], &values)]);
    let part = Target { first: 1, shape: [2, 2].into(), ..target("w", DType::F32, &[2], 0.0f32) };
    assert_eq!(load(&checkpoint, &part).unwrap(), bytemuck::cast_slice::<f32, u8>(&values[1..3]));
    let rounded = values.map(bf16::from_f32);
    let short = target("w", DType::F32, &[2, 2], bf16::ONE);
    assert_eq!(load(&checkpoint, &short).unwrap(), bytemuck::cast_slice::<bf16, u8>(&rounded));
}

#[test]
fn mismatches_are_one_sentence_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(directory.path(), &[written("mean", &[2, 3], &[0.5f32; 6])]);
    let table = [
        (target("mean", DType::U32, &[2, 3], 9u32), "mean is f32 [2, 3] there and u32 [2, 3] in this model"),
        (
            target("mean", DType::F32, &[3, 2], 9.0f32),
            "mean is f32 [2, 3] there and f32 [3, 2] in this model",
        ),
        (
            target("mean", DType::Bf16, &[2, 3], bf16::ONE),
            "mean is f32 [2, 3] there and bf16 [2, 3] in this model",
        ),
        (target("count", DType::U32, &[1], 9u32), "it has no count"),
    ];
    for (target, expected) in table {
        let mut before = vec![0; target.tensor.bytes()];
        target.tensor.read_bytes(&mut before).unwrap();
        let error = load(&checkpoint, &target).unwrap_err();
        let path = checkpoint.path().join("state.safetensors");
        assert_eq!(error.to_string(), format!("{}: {expected}", path.display()));
        let mut after = vec![0; target.tensor.bytes()];
        target.tensor.read_bytes(&mut after).unwrap();
        assert_eq!(before, after);
    }
}

/// Files of f32 arrays have the layout that earlier versions wrote.
#[test]
fn f32_arrays_have_the_layout_of_earlier_versions() {
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(directory.path(), &[written("w", &[1, 2], &[1.0f32, -2.0])]);
    let header = concat!(
        r#"{"__metadata__":{"format":"pt","writer":"plimsoll"},"#,
        r#""run.losses":{"data_offsets":[8,12],"dtype":"F32","shape":[1]},"#,
        r#""w":{"data_offsets":[0,8],"dtype":"F32","shape":[1,2]}}"#,
    );
    let mut expected = (header.len().next_multiple_of(8) as u64).to_le_bytes().to_vec();
    expected.extend(format!("{header:<width$}", width = header.len().next_multiple_of(8)).bytes());
    expected.extend([1.0f32, -2.0, 0.5].iter().flat_map(|value| value.to_le_bytes()));
    assert_eq!(state(&checkpoint), expected);
}

/// Returns the writers of three ranks. Rank 0 has elements 0 to 2 and 5 of the array `w`, rank 1 the others,
/// and rank 2 writes nothing.
fn three_writers(run_dir: &Path) -> Vec<Writer> {
    let mut writers = vec![Writer::new(run_dir, shared())];
    writers.extend((1..3).map(|_| Writer::beside(run_dir, std::process::id())));
    for (rank, writer) in writers.iter_mut().enumerate() {
        let mut snapshot = writer.begin();
        snapshot.set_file((rank < 2).then_some(rank), 2);
        let values = [&[0.0f32, 1.0, 2.0, 5.0][..], &[3.0, 4.0], &[]][rank];
        if !values.is_empty() {
            snapshot.add("w".to_owned(), DType::F32, &[values.len()]);
        }
        if rank == 0 {
            let mut index = Index::new(2);
            index.add("w".to_owned(), DType::F32, &[2, 3], vec![(0, 0, 3), (0, 5, 1), (1, 3, 2)]);
            index.add_losses(1);
            snapshot.add_losses(1);
            snapshot.set_losses(&[0.5]);
            snapshot.set_index(index);
        }
        fill(&mut snapshot, bytemuck::cast_slice(values));
        writer.write(snapshot, 1, Validations::default(), false);
        assert!(writer.is_unreported() && writer.is_busy());
    }
    writers
}

/// Reports the files of all writers to the first, and completes the checkpoint. Returns each writer's result.
fn complete(writers: &mut [Writer]) -> Vec<Result<(), String>> {
    let reports: Vec<_> = writers.iter_mut().map(Writer::report).collect();
    writers[0].complete(&reports);
    writers.iter_mut().map(|writer| writer.finish().map_err(|error| error.to_string())).collect()
}

#[test]
fn a_read_touches_only_the_files_of_its_range() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(complete(&mut three_writers(directory.path())), vec![Ok(()); 3]);
    let checkpoint = newest(directory.path()).unwrap().unwrap();
    let range = |first: usize, elements: usize| {
        let part = Target { first, shape: [2, 3].into(), ..target("w", DType::F32, &[elements], 9.0f32) };
        load(&checkpoint, &part).map(|bytes| bytemuck::cast_slice::<u8, f32>(&bytes).to_vec())
    };
    assert_eq!(range(0, 6).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(checkpoint.losses().unwrap(), [0.5]);
    std::fs::remove_file(checkpoint.path().join("state-00002-of-00002.safetensors")).unwrap();
    for (first, elements, expected) in [
        (0, 3, Some(&[0.0f32, 1.0, 2.0][..])),
        (1, 1, Some(&[1.0])),
        (5, 1, Some(&[5.0])),
        (2, 2, None),
        (4, 2, None),
        (3, 1, None),
    ] {
        assert_eq!(range(first, elements).ok().as_deref(), expected, "{first}, {elements}");
    }
}

/// A checkpoint is not published if a rank cannot write its file, or if the ranks end before they report.
#[test]
fn a_checkpoint_without_the_file_of_every_rank_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    std::fs::create_dir(&run_dir).unwrap();
    let checkpoints = run_dir.join("checkpoints");
    let temporary = checkpoints.join(format!(".step-000001.tmp-{}", std::process::id()));
    let second = temporary.join("state-00002-of-00002.safetensors");
    // Rank 1 finds a file of the name of its own.
    std::fs::create_dir_all(&temporary).unwrap();
    std::fs::write(&second, "").unwrap();
    let results = complete(&mut three_writers(&run_dir));
    let error = results[0].clone().unwrap_err();
    assert!(error.contains("step-000001: rank 1: ") && error.contains("state-00002-of-00002"), "{error}");
    assert_eq!(std::fs::read_dir(&checkpoints).unwrap().count(), 0);
    // Rank 1's host has other storage.
    let mut writers = three_writers(&run_dir);
    let reports: Vec<_> = writers.iter_mut().map(Writer::report).collect();
    std::fs::remove_file(&second).unwrap();
    writers[0].complete(&reports);
    let error = writers[0].finish().unwrap_err().to_string();
    assert!(error.starts_with(&second.display().to_string()), "{error}");
    assert_eq!(std::fs::read_dir(&checkpoints).unwrap().count(), 0);
    // The run fails before the ranks report.
    let mut writers = three_writers(&run_dir);
    for writer in writers.iter_mut().rev() {
        let ended = writer.finish();
        assert!(!writer.is_unreported() && !writer.is_busy());
        drop(ended);
    }
    assert_eq!(std::fs::read_dir(&checkpoints).unwrap().count(), 0);
    assert!(newest(&run_dir).unwrap().is_none());
    assert_eq!(complete(&mut three_writers(&run_dir)), vec![Ok(()); 3]);
    assert_eq!(newest(&run_dir).unwrap().unwrap().step(), 1);
}

/// Arrays before and after the losses keep their order, and the counters reach the manifest. Snapshots that
/// fit reuse the same memory.
#[test]
fn losses_and_counters_are_written_with_the_arrays() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path();
    std::fs::write(run_dir.join("metrics.jsonl"), "").unwrap();
    let mut writer = Writer::new(run_dir, shared());
    writer.set_memory(HostBuffer::ordinary(23));
    let scale = LossScale { scale_bits: 1024.0f32.to_bits(), good_steps: 7 };
    for (step, losses) in [(1, &[0.5f32][..]), (2, &[0.5, 0.25])] {
        let mut snapshot = writer.begin();
        assert_eq!(snapshot.add("first".to_owned(), DType::F32, &[2]), 0);
        snapshot.add_losses(losses.len());
        snapshot.set_losses(losses);
        assert_eq!(snapshot.add("last".to_owned(), DType::U8, &[3]), 8);
        assert_eq!(snapshot.add_counters(step == 2), 11);
        let mut bytes = bytemuck::cast_slice::<f32, u8>(&[1.0, 2.0]).to_vec();
        bytes.extend([7, 8, 9]);
        bytes.extend([5, scale.scale_bits, scale.good_steps].iter().flat_map(|word| word.to_le_bytes()));
        let memory = snapshot.fit(|bytes| panic!("{bytes} bytes are there"));
        memory.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(&bytes);
        writer.write(snapshot, step, Validations::default(), false);
        writer.finish().unwrap();
        let checkpoint = newest(run_dir).unwrap().unwrap();
        assert_eq!((checkpoint.step(), checkpoint.updates()), (step, 5));
        assert_eq!(checkpoint.loss_scale(), (step == 2).then_some(scale));
        assert_eq!(checkpoint.losses().unwrap(), losses);
        assert_eq!(checkpoint.bytes("first").unwrap(), bytes[..8]);
        assert_eq!(checkpoint.bytes("last").unwrap(), bytes[8..11]);
    }
}
