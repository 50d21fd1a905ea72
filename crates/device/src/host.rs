//! Memory of the host: how much this process may use, and its peak.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a page of host memory.
pub const PAGE: u64 = 4096;

/// Assumed bytes of physical memory if the system does not report them.
const UNKNOWN_TOTAL: u64 = 64 << 30;

/// The upper bound of this process's host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCapacity {
    /// The bound in bytes.
    pub bytes: u64,
    /// Name of the limit that sets the bound, for messages; `None` for the machine's memory.
    pub limit: Option<&'static str>,
}

impl HostCapacity {
    /// Returns the smallest of the machine's memory, the limits of the process's control groups (v1 and v2),
    /// and its limit on addresses.
    #[must_use]
    pub fn of_process() -> Self {
        let group = limits_of_own_groups().into_iter().map(|(_, bytes)| bytes).min();
        Self::smallest(physical_memory(), group, AddressLimit::of_process())
    }

    fn smallest(machine: u64, group: Option<u64>, addresses: Option<AddressLimit>) -> Self {
        let limited = |bytes, limit| HostCapacity { bytes, limit: Some(limit) };
        let group = group.map(|bytes| limited(bytes, "its control group"));
        let addresses = addresses.map(|limit| limited(limit.bytes, limit.name()));
        let machine = HostCapacity { bytes: machine, limit: None };
        let all = [Some(machine), group, addresses].into_iter().flatten();
        all.min_by_key(|capacity| capacity.bytes).unwrap_or(machine)
    }
}

/// An upper bound of the host memory that several processes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBound {
    /// The bound in bytes.
    pub bytes: u64,
    /// Whether a control group sets the bound; otherwise the machine does.
    pub is_of_group: bool,
    /// Identity of the machine or control group, equal for all its processes.
    pub identity: String,
}

impl SharedBound {
    /// Returns the machine's memory, and the limits of the process's control groups (v1 and v2).
    #[must_use]
    pub fn all_of_process() -> Vec<Self> {
        let identity = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let identity = identity.trim().to_owned();
        let machine = SharedBound { bytes: physical_memory(), is_of_group: false, identity };
        let of_group = |(folder, bytes): (PathBuf, u64)| {
            // A folder's number is that of the group, whatever part of the tree a container sees.
            let metadata = fs::metadata(folder).ok()?;
            let identity = format!("{} {} {}", machine.identity, metadata.dev(), metadata.ino());
            Some(SharedBound { bytes, is_of_group: true, identity })
        };
        let groups: Vec<_> = limits_of_own_groups().into_iter().filter_map(of_group).collect();
        std::iter::once(machine).chain(groups).collect()
    }
}

/// Kind of mappings that a limit on addresses covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedAddresses {
    /// All mappings: `ulimit -v`.
    All,
    /// Private writable mappings: `ulimit -d`.
    Data,
}

/// A limit on the addresses that this process reserves, whether or not memory backs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLimit {
    /// Kind of mappings that the limit covers.
    pub counted: CountedAddresses,
    /// Maximum bytes of these mappings.
    pub bytes: u64,
}

impl AddressLimit {
    /// Returns the smaller of this process's limits `ulimit -v` and `ulimit -d`; `None` if neither is set.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        Self::smallest(&fs::read_to_string("/proc/self/limits").ok()?)
    }

    /// Returns the smaller limit in `limits`, the text of `/proc/self/limits`.
    fn smallest(limits: &str) -> Option<Self> {
        let rows = [("Max address space", CountedAddresses::All), ("Max data size", CountedAddresses::Data)];
        let limit = |(title, counted)| {
            let row = limits.lines().find_map(|line| line.strip_prefix(title))?;
            Some(AddressLimit { counted, bytes: row.split_whitespace().next()?.parse().ok()? })
        };
        rows.into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
    }

    /// Returns the shell command that sets the limit.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.counted {
            CountedAddresses::All => "ulimit -v",
            CountedAddresses::Data => "ulimit -d",
        }
    }

    /// Returns the bytes that count against the limit for this process; `None` if the system does not report
    /// them.
    #[must_use]
    pub fn reserved(self) -> Option<u64> {
        let name = match self.counted {
            CountedAddresses::All => "VmSize:",
            CountedAddresses::Data => "VmData:",
        };
        kibibytes(&fs::read_to_string("/proc/self/status").ok()?, name)
    }
}

/// Returns the peak physical memory of this process so far, in bytes; `None` if the system does not report
/// it.
#[must_use]
pub fn peak_resident() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn physical_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kibibytes(&text, "MemTotal:").unwrap_or(UNKNOWN_TOTAL)
}

/// Returns the value of a line such as `MemTotal: 16384 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Returns the memory limits of this process's control groups, each with the group's folder.
fn limits_of_own_groups() -> Vec<(PathBuf, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits_of_groups(&groups, Path::new("/sys/fs/cgroup"))
}

/// Returns the memory limits of the control groups in `groups`, the text of `/proc/self/cgroup`, and of their
/// parents. In a container these folders may not be visible; the container's own group is then the root.
fn limits_of_groups(groups: &str, root: &Path) -> Vec<(PathBuf, u64)> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let _ = fields.next()?;
        let controllers = fields.next()?;
        let path = fields.next()?;
        let (folder, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let own = folder.join(path.trim_start_matches('/'));
        let above = own.ancestors().take_while(|group| group.starts_with(&folder)).map(PathBuf::from);
        let limit = |group: PathBuf| {
            let bytes = fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()?;
            Some((group, bytes))
        };
        Some(above.filter_map(limit).collect::<Vec<_>>())
    });
    limits.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_counts_and_is_named() {
        let limits = |all: &str, data: &str| {
            let row = |title: &str, soft: &str| format!("{title:<26}{soft:<21}unlimited            bytes\n");
            row("Max data size", data) + &row("Max address space", all)
        };
        let none = limits("unlimited", "unlimited");
        let table = [
            ((100, None, &*none), (100, None)),
            ((100, Some(200), &limits("300", "400")), (100, None)),
            ((100, Some(50), &limits("70", "unlimited")), (50, Some("its control group"))),
            ((100, Some(50), &limits("40", "unlimited")), (40, Some("ulimit -v"))),
            ((100, Some(50), &limits("40", "30")), (30, Some("ulimit -d"))),
            ((100, None, "no such rows"), (100, None)),
        ];
        for ((machine, group, limits), (bytes, limit)) in table {
            let capacity = HostCapacity::smallest(machine, group, AddressLimit::smallest(limits));
            assert_eq!(capacity, HostCapacity { bytes, limit });
        }
        assert!(
            [CountedAddresses::All, CountedAddresses::Data]
                .into_iter()
                .all(|counted| { AddressLimit { counted, bytes: 0 }.reserved().unwrap() > 1 << 16 })
        );
        assert!(HostCapacity::of_process().bytes > 1 << 20 && peak_resident().unwrap() > 1 << 20);
    }

    /// All processes of this machine share its memory, so they must agree on its identity.
    #[test]
    fn the_machine_is_the_first_shared_bound() {
        let bounds = SharedBound::all_of_process();
        assert!(!bounds[0].is_of_group && !bounds[0].identity.is_empty(), "{bounds:?}");
        assert!(bounds[1..].iter().all(|bound| bound.is_of_group && bound.identity != bounds[0].identity));
        assert_eq!(bounds, SharedBound::all_of_process());
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
            let limits = limits_of_groups(groups, root.path());
            assert_eq!(limits.into_iter().map(|(_, bytes)| bytes).min(), expected, "{groups}");
        }
    }
}
