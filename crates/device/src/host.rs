//! Memory of the host: how much this process may have, and how much it has had.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of a page of host memory.
pub const PAGE: u64 = 4096;

/// Bytes of physical memory where the system does not say.
const UNKNOWN_TOTAL: u64 = 64 << 30;

/// A bound on the host memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// The bound in bytes.
    pub bytes: u64,
    /// The limit that sets the bound, for messages; `None` for the machine itself.
    pub limit: Option<&'static str>,
}

impl HostCapacity {
    /// The smallest of the machine's memory, the limits of the process's control groups (v1 and v2) and its
    /// limit on address space (`ulimit -v`).
    #[must_use]
    pub fn of_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::smallest(physical_memory(), group_limit(&groups, Path::new("/sys/fs/cgroup")), address_space())
    }

    fn smallest(machine: u64, group: Option<u64>, address_space: Option<u64>) -> Self {
        let machine = HostCapacity { bytes: machine, limit: None };
        let limits = [(group, "its control group"), (address_space, "ulimit -v")];
        let limits = limits.map(|(bytes, limit)| Some(HostCapacity { bytes: bytes?, limit: Some(limit) }));
        [Some(machine), limits[0], limits[1]]
            .into_iter()
            .flatten()
            .min_by_key(|capacity| capacity.bytes)
            .unwrap_or(machine)
    }
}

/// Returns the limit on this process's address space in bytes (`ulimit -v`), if there is one.
#[must_use]
pub fn address_space() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the bytes of addresses that this process has reserved, with or without memory; `None` where the
/// system does not say.
#[must_use]
pub fn reserved_addresses() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")
}

/// Returns the most physical memory that this process has had so far, in bytes; `None` where the system does
/// not say.
#[must_use]
pub fn peak_resident() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn physical_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kibibytes(&text, "MemTotal:").unwrap_or(UNKNOWN_TOTAL)
}

/// The value of a line such as `MemTotal: 16384 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The smallest limit on memory of the groups that `groups` (the text of `/proc/self/cgroup`) names, and of
/// those above them. In a container the named folders may be out of sight: its own group is the root then.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let own = folder.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|group| group.starts_with(&folder)).map(PathBuf::from);
        above.filter_map(|group| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_counts_and_is_named() {
        let table = [
            ((100, None, None), (100, None)),
            ((100, Some(200), Some(300)), (100, None)),
            ((100, Some(50), Some(70)), (50, Some("its control group"))),
            ((100, Some(50), Some(40)), (40, Some("ulimit -v"))),
        ];
        for ((machine, group, address_space), (bytes, limit)) in table {
            let found = HostCapacity::smallest(machine, group, address_space);
            assert_eq!(found, HostCapacity { bytes, limit });
        }
        assert!(HostCapacity::of_process().bytes > 1 << 20 && peak_resident().unwrap() > 1 << 20);
    }

    #[test]
    fn limits_of_control_groups_are_found_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("job/memory.max", "4000\n");
        write("job/step/memory.max", "max\n");
        write("memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.limit_in_bytes", "700\n");
        let table = [
            ("0::/job/step\n", Some(4000)),
            ("0::/elsewhere\n", None),
            ("3:cpu,memory:/docker/id\n2:pids:/\n", Some(700)),
            ("3:memory:/docker\n0::/job\n", Some(700)),
            ("", None),
        ];
        for (groups, expected) in table {
            assert_eq!(group_limit(groups, root.path()), expected, "{groups}");
        }
    }
}
