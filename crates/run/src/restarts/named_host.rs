//! Hosts as a user names them, and the number of ranks they take.

use std::path::Path;

/// The number of ranks that a host takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    /// This number.
    Count(usize),
    /// As many ranks as the host has processor cores.
    Cores,
}

/// A host named by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedHost {
    pub(super) name: String,
    pub(super) slots: Slots,
}

impl Slots {
    /// Returns the sum; `Cores` if either side is.
    pub(super) fn and(self, other: Slots) -> Slots {
        match (self, other) {
            (Slots::Count(one), Slots::Count(more)) => Slots::Count(one + more),
            _ => Slots::Cores,
        }
    }

    /// Returns the smaller number, or the known one if only one is known.
    pub(super) fn at_most(self, other: Slots) -> Slots {
        match (self, other) {
            (Slots::Count(one), Slots::Count(other)) => Slots::Count(one.min(other)),
            (Slots::Cores, known) | (known, Slots::Cores) => known,
        }
    }
}

/// Linux files that [`cores`] parses.
pub(super) const CORE_FILES: [&str; 2] = ["/proc/self/status", "/proc/cpuinfo"];
/// Maximum bytes read of each of these files.
pub(super) const MOST_BYTES: u64 = 16 << 20;

/// Returns the number of processor cores that a process may use, from the concatenated text of
/// [`CORE_FILES`]. Counts as mpirun does, without a core's additional hardware threads. At least 1.
pub(super) fn cores(text: &str) -> usize {
    let field = |line: &str, name: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    let allowed = text.lines().find_map(|line| field(line, "Cpus_allowed_list"));
    let is_allowed = |number: usize| allowed.as_ref().is_none_or(|list| is_in(list, number));
    let mut cores: Vec<(String, String)> = Vec::new();
    for block in text.split("\n\n") {
        let value = |name: &str| block.lines().find_map(|line| field(line, name));
        let Some(number) = value("processor").and_then(|number| number.parse::<usize>().ok()) else {
            continue;
        };
        // Processors without these fields are a core each.
        let core = (
            value("physical id").unwrap_or_default(),
            value("core id").unwrap_or_else(|| number.to_string()),
        );
        if is_allowed(number) && !cores.contains(&core) {
            cores.push(core);
        }
    }
    cores.len().max(1)
}

/// Returns the number of usable cores of this host.
pub(super) fn own_cores() -> usize {
    let read = |file: &str| system::input::read_text(Path::new(file), MOST_BYTES).unwrap_or_default();
    cores(&CORE_FILES.map(read).concat())
}

/// Returns whether a list of ranges like `0-3,8` contains `number`.
fn is_in(list: &str, number: usize) -> bool {
    let is_in_range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last] = [first, last].map(|end| end.trim().parse::<usize>().ok());
        first.zip(last).is_some_and(|(first, last)| (first..=last).contains(&number))
    };
    list.split(',').any(is_in_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_once_among_the_allowed_ones() {
        let processors = |all: &[(usize, Option<(usize, usize)>)]| -> String {
            let block = |(number, core): &(usize, Option<(usize, usize)>)| match core {
                Some((package, core)) => {
                    format!("processor\t: {number}\nphysical id\t: {package}\ncore id\t\t: {core}\n\n")
                }
                None => format!("processor\t: {number}\nBogoMIPS\t: 50.00\n\n"),
            };
            all.iter().map(block).collect()
        };
        let threads = [(0, Some((0, 0))), (1, Some((0, 1))), (2, Some((0, 0))), (3, Some((1, 0)))];
        let plain = [(0, None), (1, None), (2, None)];
        for (allowed, text, expected) in [
            ("0-3", processors(&threads), 3),
            ("0,2", processors(&threads), 1),
            ("0-1,3", processors(&threads), 3),
            ("0-2", processors(&plain), 3),
            ("1", processors(&plain), 1),
            ("0-7", String::new(), 1),
        ] {
            let status = format!("Name:\tcat\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nx:\ty\n");
            assert_eq!(cores(&(status + &text)), expected, "{allowed}: {text}");
        }
        assert!(own_cores() >= 1 && own_cores() <= system::threads::processors());
    }
}
