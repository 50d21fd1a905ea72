//! The hash of a model's weights.

use std::collections::BTreeMap;

use collective::Axis;
use nn::ElementRun;
use sha2::digest::common::hazmat::SerializableState;
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use tensor::Tensor;

use crate::error::{Result, WorkerError};
use crate::state::{self, Array};
use crate::worker::Worker;

/// Number of elements copied to the host at a time.
const PIECE: usize = 1 << 18;

/// Returns the hexadecimal SHA-256 of the weights, on every rank. Parameters are sorted by the bytes of their
/// names. For each, the hash covers its name in UTF-8 and its f32 master weights, little-endian. Every rank
/// must call this. Copies to the host in chunks, and allocates nothing on the device.
///
/// # Errors
/// Weights differ between ranks that should hold the same; names the first such rank.
pub fn agreed_hash(worker: &mut Worker) -> Result<String> {
    let masters = state::masters(worker)?;
    let one_stage = worker.grid().size(Axis::Pipeline) == 1;
    if one_stage && masters.iter().all(Array::is_replicated) {
        let masters = masters.iter().filter_map(|array| Some((array.name.as_str(), array.whole()?)));
        let own = weights_sha256(masters)?;
        return same_where_shared(worker, &[("weights", &own)]).map(|()| own);
    }
    // No rank has all masters, but every rank of a stage has the weights rounded from them, or the ranks with
    // the same index in each group have the same parts of them.
    let parallel = &worker.setup().config.parallel;
    let sharing = if parallel.shards_weights() { parallel.owners() } else { 1 };
    let index = worker.grid().coordinate_over(parallel.replica_axes()) % sharing;
    let [stage, tensor_rank] = [Axis::Pipeline, Axis::Tensor].map(|axis| worker.grid().coordinate(axis));
    let all = weights_in_use(worker)?;
    let is_divided = |parameter: &nn::Parameter| parameter.sharding.is_divided_along(Axis::Tensor);
    let hash = |divided: bool| {
        let chosen = all.iter().filter(|(parameter, _)| is_divided(parameter) == divided);
        weights_sha256(chosen.map(|(parameter, tensor)| (parameter.name.as_str(), tensor)))
    };
    let divided = format!("stage.{stage}.{index}.{tensor_rank}");
    let mut hashes = vec![(format!("stage.{stage}.{index}"), hash(false)?), (divided, hash(true)?)];
    for (copied, tensor) in all.iter().filter(|(parameter, _)| parameter.shared) {
        let hash = weights_sha256([(copied.name.as_str(), tensor)].into_iter())?;
        hashes.push((format!("{}.{index}.{tensor_rank}.{}", copied.name, copied.shard), hash));
    }
    let hashes: Vec<_> = hashes.iter().map(|(name, hash)| (name.as_str(), hash.as_str())).collect();
    same_where_shared(worker, &hashes)?;
    chained_sha256(worker, masters)
}

/// Returns the weights that this rank computes with, or its shards if weights are sharded.
fn weights_in_use(worker: &Worker) -> Result<Vec<(nn::Parameter, Tensor)>> {
    let mut all = Vec::new();
    for (model, units) in worker.stage_weights() {
        for (number, parameter) in model.parameters().list().iter().enumerate() {
            let own = match units {
                Some(units) => units.part(number)?.map(|(_, part)| part),
                None => Some(parameter.weight.tensor()?),
            };
            all.extend(own.map(|own| (parameter.clone(), own)));
        }
    }
    Ok(all)
}

/// Compares hashes with the hashes of the same name on other ranks.
fn same_where_shared(worker: &mut Worker, own: &[(&str, &str)]) -> Result<()> {
    let lines: Vec<_> = own.iter().map(|(name, hash)| format!("{hash} {name}")).collect();
    let all = worker.control().all_gather(lines.join("\n").as_bytes())?;
    let mut seen: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (rank, text) in all.iter().enumerate() {
        let text = String::from_utf8_lossy(text);
        for (hash, name) in text.lines().filter_map(|line| line.split_once(' ')) {
            let (first, expected) = seen.entry(name.to_owned()).or_insert_with(|| (rank, hash.to_owned()));
            if expected != hash {
                let reason = format!("its weights are not those of rank {first} after training");
                return Err(WorkerError::Rank { rank, reason });
            }
        }
    }
    Ok(())
}

fn weights_sha256<'a>(weights: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<String> {
    let mut sorted: Vec<_> = weights.collect();
    sorted.sort_by_key(|(name, _)| name.as_bytes());
    let mut digest = Sha256::new();
    for (name, tensor) in sorted {
        digest.update(name.as_bytes());
        feed(&mut digest, tensor)?;
    }
    Ok(hexadecimal(&digest.finalize()))
}

/// Feeds the bytes of all elements, which are little-endian as in checkpoints, to the hash.
fn feed(digest: &mut Sha256, tensor: &Tensor) -> Result<()> {
    let elements = tensor.elements();
    let mut bytes = Vec::new();
    for start in (0..elements).step_by(PIECE) {
        let piece = tensor.view(start, [PIECE.min(elements - start)])?;
        bytes.resize(piece.bytes(), 0);
        piece.read_bytes(&mut bytes)?;
        digest.update(&bytes);
    }
    Ok(())
}

/// Maximum number of contiguous ranges per part for hashing by ranks one after another. Arrays with more are
/// gathered on rank 0, because each change of rank costs a message to all.
const MOST_RUNS: usize = 8;

/// The contiguous part of the hashed message that one rank hashes.
#[derive(Debug)]
struct HashSegment {
    rank: usize,
    parts: Vec<SegmentPart>,
}

#[derive(Debug)]
enum SegmentPart {
    /// A range of an array's elements: (array index, index of the rank's tensor, range).
    Run(usize, usize, ElementRun),
    /// A whole array, which is gathered on rank 0 and hashed there.
    Whole(usize),
}

/// Returns the segments that ranks hash one after another, array by array.
fn hash_segments(arrays: &[Array]) -> Vec<HashSegment> {
    let mut segments: Vec<HashSegment> = Vec::new();
    let mut add = |rank: usize, part: SegmentPart| match segments.last_mut() {
        Some(segment) if segment.rank == rank => segment.parts.push(part),
        _ => segments.push(HashSegment { rank, parts: vec![part] }),
    };
    for (index, array) in arrays.iter().enumerate() {
        let runs = array.runs_in_order();
        if runs.len() > MOST_RUNS * array.parts_count() {
            add(0, SegmentPart::Whole(index));
            continue;
        }
        runs.into_iter().for_each(|(rank, lane, run)| add(rank, SegmentPart::Run(index, lane, run)));
    }
    segments
}

/// Returns the hash of master weights that are spread over several ranks, on all of them. The hash's state is
/// sent from rank to rank, and each adds the elements it holds. Every rank must call this.
fn chained_sha256(worker: &mut Worker, mut masters: Vec<Array>) -> Result<String> {
    masters.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    let rank = worker.grid().rank();
    let watch = worker.control().watch();
    let mut digest = Sha256::new();
    let mut bytes = Vec::new();
    for segment in hash_segments(&masters) {
        for part in &segment.parts {
            match part {
                SegmentPart::Whole(index) => {
                    let array = &masters[*index];
                    bytes.resize(if rank == 0 { array.bytes() } else { 0 }, 0);
                    array.bring(worker, &mut bytes)?;
                    digest.update(array.name.as_bytes());
                    digest.update(&bytes);
                }
                SegmentPart::Run(index, lane, run) if segment.rank == rank => {
                    let array = &masters[*index];
                    if run.whole == 0 {
                        digest.update(array.name.as_bytes());
                    }
                    array.read_run((*lane, *run), PIECE, &mut bytes, |piece| {
                        // The others wait for this rank, which may hold gigabytes.
                        watch.delay();
                        digest.update(piece);
                    })?;
                }
                SegmentPart::Run(..) => {}
            }
        }
        let mut message = digest.serialize().to_vec();
        worker.control().broadcast(segment.rank, &mut message)?;
        let refused =
            || WorkerError::Rank { rank: segment.rank, reason: "it sent no state of a hash".to_owned() };
        let state = message.as_slice().try_into().ok();
        digest = state.and_then(|state| Sha256::deserialize(state).ok()).ok_or_else(refused)?;
    }
    Ok(hexadecimal(&digest.finalize()))
}

#[cfg(test)]
mod tests {
    use device::{Category, Device, DeviceOptions};
    use tensor::Tensor;

    #[test]
    fn names_are_hashed_in_byte_order_each_with_its_values() {
        let device = Device::cpu(0, &DeviceOptions::default()).unwrap();
        let tensor =
            |values: &[f32]| Tensor::from_host(&device, values, [values.len()], Category::Parameter).unwrap();
        let second = tensor(&[-1.0]);
        let first = tensor(&[0.5, 1.5, 2.5]);
        // sha256 of "a", 0.5, 1.5, 2.5, "é", -1, computed by Python's hashlib and struct.
        let expected = "e4802aa3a0ea12851d885f660946bd5f7924bdc37ad6ac417ec069b7b960721d";
        let weights = [("é", &second), ("a", &first)];
        assert_eq!(super::weights_sha256(weights.into_iter()).unwrap(), expected);
    }
}
