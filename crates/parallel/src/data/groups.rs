//! Groups of weights that are exchanged together when optimizer state is sharded.

use nn::Parameters;

use super::buckets::BucketLayout;

/// Minimum number of groups. More groups let forward start sooner, but each costs a call.
const GROUPS: usize = 16;

/// Returns the parameter numbers of each group, in the order in which forward uses them.
///
/// A group is one bucket or several. Every rank owns an equal shard of each bucket, so all ranks send the
/// same amount. A single bucket may exceed a group's target bytes.
pub(super) fn weight_groups(parameters: &Parameters, layout: &BucketLayout) -> Vec<Vec<usize>> {
    let mut buckets = vec![Vec::new(); layout.elements.len()];
    for (parameter, slot) in layout.first_uses(parameters).into_iter().enumerate() {
        if let Some(slot) = slot {
            buckets[slot.bucket].push(parameter);
        }
    }
    let bytes_of = |bucket: &[usize]| -> usize {
        bucket.iter().map(|parameter| parameters.list()[*parameter].weight.bytes()).sum()
    };
    let most = buckets.iter().map(|bucket| bytes_of(bucket)).sum::<usize>() / GROUPS;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut filled = usize::MAX;
    // Backward fills buckets from the end of the model.
    for bucket in buckets.into_iter().rev().filter(|bucket| !bucket.is_empty()) {
        let bytes = bytes_of(&bucket);
        match groups.last_mut() {
            Some(group) if filled.saturating_add(bytes) <= most => {
                group.extend(bucket);
                filled += bytes;
            }
            _ => {
                groups.push(bucket);
                filled = bytes;
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use device::{DType, Description, Device, DeviceOptions};
    use nn::{Init, Parameters};

    use super::super::buckets::BucketEnd;
    use super::{BucketLayout, weight_groups};

    #[test]
    fn groups_are_buckets_in_the_order_of_forward() {
        let device = Device::meta(0, Description::host(), &DeviceOptions::default()).unwrap();
        let chunk = tensor::ops::norm::CHUNK;
        // A table with two uses, then layers with two parameters each.
        let mut parameters = Parameters::new(&device, 1, DType::F32);
        parameters.create("table", [64 * chunk], Init::Constant(0.0)).unwrap();
        for layer in 0..20 {
            for name in ["weight", "bias"] {
                let elements = if name == "weight" { 5 * chunk } else { chunk };
                parameters.create(&format!("{layer}.{name}"), [elements], Init::Constant(0.0)).unwrap();
            }
        }
        parameters.reuse("table").unwrap();
        let groups = |bucket_bytes| {
            let end = BucketEnd::Bytes(bucket_bytes);
            let layout = BucketLayout::from_parameters(&parameters, DType::F32, end, 2);
            weight_groups(&parameters, &layout)
        };
        // At most (64 + 20 · 6) / 16 chunks: a layer of 6, or three parameters, of 5, 1 and 5 or of 1, 5 and
        // 1.
        let by_layer = groups(4 * 6 * chunk);
        assert_eq!(by_layer.len(), 21);
        assert_eq!((&by_layer[0], &by_layer[1], &by_layer[20]), (&vec![0], &vec![1, 2], &vec![39, 40]));
        let by_parameter = groups(4);
        assert_eq!((by_parameter.len(), &by_parameter[1]), (15, &vec![1, 2, 3]));
        assert_eq!(groups(1 << 30), [vec![0], (1..41).collect()]);
        for groups in [by_layer, by_parameter] {
            assert!(groups.concat().is_sorted() && groups.concat().len() == 41);
        }
    }
}
