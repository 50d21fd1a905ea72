//! Memory that processes of a job share: the memory of each host and the limits of control groups.

use std::collections::BTreeMap;

use device::host::SharedBound;
use plan::SharedMemory;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::startup::Startup;

/// A memory limit of a process, as sent between ranks.
#[derive(Serialize, Deserialize)]
struct Bound {
    bytes: u64,
    is_of_group: bool,
    identity: String,
}

/// Returns the memories shared by this job's processes, on all ranks; empty outside a job. Every rank must
/// call this.
pub(crate) fn find(startup: &mut Startup) -> Result<Vec<SharedMemory>> {
    if !startup.is_in_job() {
        return Ok(Vec::new());
    }
    let own: Vec<_> = SharedBound::all_of_process()
        .into_iter()
        .map(|SharedBound { bytes, is_of_group, identity }| Bound { bytes, is_of_group, identity })
        .collect();
    // Serializing strings and numbers does not fail.
    let all = startup.of_all(&serde_json::to_string(&own).unwrap_or_default())?;
    let bounds = all.iter().map(|text| serde_json::from_str(text).unwrap_or_default()).collect();
    Ok(by_identity(bounds, &startup.hosts()))
}

/// Groups the limits of all ranks by memory. Returns each memory with the ranks that share it.
fn by_identity(bounds: Vec<Vec<Bound>>, hosts: &[String]) -> Vec<SharedMemory> {
    let mut memories: BTreeMap<String, SharedMemory> = BTreeMap::new();
    for (rank, bounds) in bounds.into_iter().enumerate() {
        for Bound { bytes, is_of_group, identity } in bounds {
            let host = || hosts.get(rank).cloned().unwrap_or_default();
            let memory = memories.entry(identity).or_insert_with(|| SharedMemory {
                host: host(),
                bytes,
                is_of_group,
                ranks: Vec::new(),
            });
            memory.bytes = memory.bytes.min(bytes);
            memory.ranks.push(rank);
        }
    }
    memories.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_grouped_by_machine_and_by_control_group() {
        let bound = |bytes: u64, identity: &str| Bound {
            bytes,
            is_of_group: identity.contains(' '),
            identity: identity.to_owned(),
        };
        let bounds = vec![
            vec![bound(100, "one"), bound(60, "one 7")],
            vec![bound(100, "one"), bound(60, "one 7"), bound(20, "one 8")],
            vec![bound(200, "two")],
        ];
        let hosts = ["a", "a", "b"].map(str::to_owned);
        let memory = |host: &str, bytes, is_of_group, ranks: &[usize]| SharedMemory {
            host: host.to_owned(),
            bytes,
            is_of_group,
            ranks: ranks.to_vec(),
        };
        let expected = [
            memory("a", 100, false, &[0, 1]),
            memory("a", 60, true, &[0, 1]),
            memory("a", 20, true, &[1]),
            memory("b", 200, false, &[2]),
        ];
        assert_eq!(by_identity(bounds, &hosts), expected);
    }
}
