//! Tests of sharded state with separate master weights.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint::{Checkpoint, Contents, Target, Validations, Writer};
use collective::{Axis, Communicator, threads};
use nn::Stage;
use parallel::data::{WorkKind, gather_weights};
use parallel::pipeline::StagePart;
use tensor::Tensor;

use super::Worker;
use crate::dataset::DataScope;
use crate::error::WorkerError;
use crate::setup::Setup;
use crate::setup::placement::Placement;
use crate::setup::start::Weights;
use crate::state::hash::agreed_hash;
use crate::state::loading::load_models;
use crate::state::targets::Targets;
use config::RunConfig;

const TEXT: &str = r#"
[model]
kind = "mlp"
sizes = [30, 300, 100, 70]
[data]
kind = "synthetic"
[train]
steps = 9
global_batch_size = 32
[optim]
kind = "adamw"
[precision]
compute = "bf16"
[checkpoint]
every = 1
"#;

/// Builds a bf16 setup.
fn setup(ranks: usize, sharded: bool) -> Setup {
    setup_with(&[&format!("parallel.data={ranks}"), &format!("parallel.zero_stage={}", u8::from(sharded))])
}

fn setup_with(overrides: &[&str]) -> Setup {
    let overrides: Vec<_> = overrides.iter().map(|setting| (*setting).to_owned()).collect();
    vision::register().unwrap();
    let config = RunConfig::parse(TEXT, "test.toml", Path::new("/"), &overrides).unwrap();
    let one = |config: &RunConfig| vec![Stage::whole(config.layers())];
    Setup::new(config, Placement::Cpu, DataScope::All, |config, _, _| Ok::<_, WorkerError>(one(config)))
        .unwrap()
}

/// Updates with artificial gradients, and returns the resulting weights' hash.
fn update(worker: &mut Worker) -> Result<String, WorkerError> {
    let part = &worker.stages.parts[0];
    let shards = part.reduction.shards();
    let gradients = part.reduction.gradients();
    let state = worker.update.norm.norm.state();
    let step = state.updates()? as f32;
    for (owned, gradient) in shards.own().iter().zip(gradients) {
        let value = |element: usize| (0.1 + owned.parameter as f32 + step) * (1.0 + element as f32).sin();
        gradient.set(&owned.shard.range.clone().map(value).collect::<Vec<_>>())?;
    }
    state.set_learning_rate(0.01)?;
    worker.update.optimizer.step(gradients, state)?;
    let group = worker.engine.groups.divided(Axis::Data)?.within;
    gather_weights(&group, &part.reduction, part.model.parameters(), ..)?;
    agreed_hash(worker)
}

/// Writes a checkpoint of step `steps` to the run directory `to`. Every rank must call this.
fn save(worker: &mut Worker, steps: u64, to: &Path) -> Result<(), WorkerError> {
    let configuration = worker.engine.setup.config.identity();
    let contents = Contents {
        keep: 2,
        configuration,
        libraries: String::new(),
        base: None,
        corpus: None,
        before: Arc::new(|| Ok(())),
        reference_sha256: Arc::default(),
        left_out: Vec::new(),
    };
    let mut writer = match worker.grid().rank() {
        0 => Writer::new(to, contents),
        _ => Writer::beside(to, std::process::id()),
    };
    let mut snapshot = writer.begin();
    worker.take_snapshot(&mut snapshot, steps)?;
    snapshot.set_losses(&vec![0.5; steps as usize]);
    writer.write(snapshot, steps, Validations::default(), false);
    if writer.is_unreported() {
        let own = writer.report();
        if let Some(reports) = worker.control().gather(0, &own)? {
            writer.complete(&reports);
        }
    }
    Ok(writer.finish()?)
}

/// Returns the weights' hashes at the start, or of the checkpoint in `from`, and after each of two updates.
/// Writes a checkpoint between the updates to `to`.
fn hashes(ranks: usize, sharded: bool, from: Option<&Path>, to: &Path) -> Vec<String> {
    let setup = setup(ranks, sharded);
    std::fs::write(to.join("metrics.jsonl"), "").unwrap();
    let from = from.map(Path::to_owned);
    let to = to.to_owned();
    let body = move |communicator: Communicator| -> Result<Vec<String>, WorkerError> {
        let mut worker = Worker::new(&setup, communicator)?;
        if let Some(from) = &from {
            worker.restore(&checkpoint::newest(from)?.unwrap())?;
        }
        let mut hashes = vec![agreed_hash(&mut worker)?, update(&mut worker)?];
        let steps = u64::from(worker.update.norm.norm.state().updates()?);
        save(&mut worker, steps, &to)?;
        hashes.push(update(&mut worker)?);
        Ok(hashes)
    };
    let mut ranks = threads::run(ranks, threads::Options::default(), body).unwrap();
    assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]));
    ranks.remove(0)
}

#[test]
fn sharded_masters_start_and_are_hashed_saved_and_restored_like_whole_ones() {
    let directory = |name: &str| tempfile::Builder::new().prefix(name).tempdir().unwrap();
    let state = |run_dir: &Path| {
        let newest = checkpoint::newest(run_dir).unwrap().unwrap();
        let array = |name: &str| (name.to_owned(), newest.bytes(name).unwrap());
        newest.names().map(array).collect::<Vec<_>>()
    };
    let whole = directory("whole");
    let reference = hashes(1, false, None, whole.path());
    assert!(reference[0] != reference[1] && reference[1] != reference[2]);
    for (ranks, sharded) in [(2, false), (2, true), (4, true)] {
        let parts = directory("parts");
        assert_eq!(hashes(ranks, sharded, None, parts.path()), reference, "{ranks} ranks");
        assert!(state(parts.path()) == state(whole.path()), "{ranks} ranks");
        let checkpoint = checkpoint::newest(parts.path()).unwrap().unwrap();
        let names: Vec<_> =
            std::fs::read_dir(checkpoint.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), if sharded { ranks + 2 } else { 2 }, "{names:?}");
        for (ranks, sharded) in [(1, false), (2, true), (4, false), (4, true)] {
            let again = hashes(ranks, sharded, Some(parts.path()), directory("again").path());
            assert_eq!(again[..2], reference[1..], "{ranks} ranks");
        }
    }
}

#[test]
fn a_skipped_step_counts_as_a_step_but_not_as_an_update() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path();
    std::fs::write(run_dir.join("metrics.jsonl"), "").unwrap();
    let setup = setup(1, false);
    let mut worker = Worker::new(&setup, Communicator::solo()).unwrap();
    let first = update(&mut worker).unwrap();
    worker.update.norm.norm.state().set_skip(true).unwrap();
    assert_eq!(update(&mut worker).unwrap(), first);
    save(&mut worker, 2, run_dir).unwrap();
    let saved = checkpoint::newest(run_dir).unwrap().unwrap();
    assert_eq!((saved.step(), saved.updates()), (2, 1));
    worker.update.norm.norm.state().set_skip(false).unwrap();
    let second = update(&mut worker).unwrap();
    assert_ne!(second, first);
    let mut again = Worker::new(&setup, Communicator::solo()).unwrap();
    again.restore(&saved).unwrap();
    assert_eq!(again.update.norm.norm.state().updates().unwrap(), 1);
    assert_eq!(update(&mut again).unwrap(), second);
}

/// Wraps a checkpoint and counts the bytes read.
#[derive(Debug)]
struct Counted {
    checkpoint: Checkpoint,
    read: AtomicUsize,
    /// Index of the first element of an array that cannot be read.
    damaged: usize,
}

impl Counted {
    fn from_checkpoint(checkpoint: &Checkpoint, damaged: usize) -> Arc<Self> {
        Arc::new(Counted { checkpoint: checkpoint.clone(), read: AtomicUsize::new(0), damaged })
    }
}

impl Weights for Counted {
    fn id(&self) -> &str {
        self.checkpoint.id()
    }

    fn path(&self) -> &Path {
        self.checkpoint.path()
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.has(name)
    }

    fn load(&self, targets: &mut dyn Iterator<Item = Target>) -> Result<(), WorkerError> {
        let count = |target: &Target| {
            let bytes = target.dtype.bytes() * target.tensor.elements();
            self.read.fetch_add(bytes, Ordering::Relaxed);
        };
        for target in targets.inspect(count) {
            if target.first + target.tensor.elements() > self.damaged {
                return Err(WorkerError::Refused(format!("{} is damaged", target.name)));
            }
            Checkpoint::load::<WorkerError>(&self.checkpoint, std::iter::once(target))?;
        }
        Ok(())
    }
}

/// Returns the bits of the weights that this rank holds.
fn weight_bits(worker: &Worker) -> Vec<Vec<u8>> {
    let bits = |weight: Tensor| {
        let mut bits = vec![0; weight.bytes()];
        weight.read_bytes(&mut bits).unwrap();
        bits
    };
    let mut all = Vec::new();
    for StagePart { model, weights, .. } in &worker.stages.parts {
        for (number, parameter) in model.parameters().list().iter().enumerate() {
            all.extend(match weights {
                Some(units) => units.part(number).unwrap().map(|(_, part)| bits(part)),
                None => Some(bits(parameter.weight.tensor().unwrap())),
            });
        }
    }
    all
}

/// Loads a checkpoint on `ranks` ranks, and then its weights again as for a model that is not trained.
/// Returns the bytes read each time, and the weights' hashes then and after an update.
fn loaded(ranks: usize, overrides: &[&str], checkpoint: &Checkpoint) -> ([usize; 2], Vec<String>) {
    let setup = setup_with(&[overrides, &[&format!("parallel.data={ranks}")]].concat());
    let weights = Counted::from_checkpoint(checkpoint, usize::MAX);
    let models = Counted::from_checkpoint(checkpoint, usize::MAX);
    let counted = [Arc::clone(&weights), Arc::clone(&models)];
    let body = move |communicator: Communicator| -> Result<Vec<String>, WorkerError> {
        let mut worker = Worker::new(&setup, communicator)?;
        let targets = Targets::from_worker(&worker)?;
        worker.take(&*weights, targets)?;
        worker.set_updates(weights.checkpoint.updates())?;
        worker.gather_for(WorkKind::Forward)?;
        let cast = weight_bits(&worker);
        let mut hashes = vec![agreed_hash(&mut worker)?];
        // The reader rounds like a cast.
        let own = worker.stages.parts.iter().map(|part| (&*part.model, part.weights.as_ref()));
        load_models(&mut worker.engine, own, &*models)?;
        assert!(weight_bits(&worker) == cast);
        if worker.stages.parts[0].weights.is_none() {
            hashes.push(update(&mut worker)?);
        }
        Ok(hashes)
    };
    let mut ranks = threads::run(ranks, threads::Options::default(), body).unwrap();
    assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]));
    (counted.map(|weights| weights.read.load(Ordering::Relaxed)), ranks.remove(0))
}

#[test]
fn ranks_read_each_byte_of_a_checkpoint_once() {
    const SIZES: &str = "model.sizes=[300, 301, 300, 250]";
    for precision in ["precision.compute=bf16", "precision.compute=f16", "precision.compute=f32"] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("metrics.jsonl"), "").unwrap();
        let mut worker = Worker::new(&setup_with(&[SIZES, precision]), Communicator::solo()).unwrap();
        update(&mut worker).unwrap();
        save(&mut worker, 1, directory.path()).unwrap();
        let checkpoint = checkpoint::newest(directory.path()).unwrap().unwrap();
        let (bytes, reference) = loaded(1, &[SIZES, precision], &checkpoint);
        let weights = size_of::<f32>() * worker.parameters();
        assert_eq!(bytes, [3 * weights, weights]);
        for (ranks, layout) in [
            (3, &["parallel.zero_stage=0"][..]),
            (4, &["parallel.zero_stage=0"]),
            (4, &["parallel.zero_stage=1"]),
            (4, &["parallel.zero_stage=2"]),
            (4, &["parallel.zero_stage=3"]),
            (4, &["parallel.zero_stage=2", "parallel.shard=2"]),
            (4, &["parallel.zero_stage=3", "parallel.shard=2"]),
        ] {
            let (read, hashes) = loaded(ranks, &[&[SIZES, precision], layout].concat(), &checkpoint);
            assert_eq!(hashes, reference[..hashes.len()], "{precision} {layout:?}");
            for (bytes, read) in bytes.into_iter().zip(read) {
                let is_near = bytes <= read && read < bytes + bytes / 20;
                assert!(is_near, "{precision} {layout:?}: {read} of {bytes}");
            }
        }
    }
}

#[test]
fn ranks_that_have_read_their_parts_learn_why_another_one_has_not() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("metrics.jsonl"), "").unwrap();
    let mut worker = Worker::new(&setup(1, false), Communicator::solo()).unwrap();
    save(&mut worker, 0, directory.path()).unwrap();
    let checkpoint = checkpoint::newest(directory.path()).unwrap().unwrap();
    // Not all ranks read the end of the longest arrays.
    let weights = Counted::from_checkpoint(&checkpoint, 29_999);
    let setup = setup(4, false);
    let body = move |communicator: Communicator| -> Result<(), WorkerError> {
        let mut worker = Worker::new(&setup, communicator)?;
        let targets = Targets::from_worker(&worker)?;
        worker.take(&*weights, targets)
    };
    let failed = threads::run(4, threads::Options::default(), body).unwrap_err();
    assert!(failed.cause.to_string().ends_with("1.weight is damaged"), "{failed}");
}
