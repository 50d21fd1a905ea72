//! Parses hosts in files and options as Open MPI's mpirun does.

use std::path::Path;

use system::readers::{FileKey, Reader, Unlisted};

use super::named_host::{NamedHost, Slots};
use crate::error::{Result, RunError};

/// Maximum bytes read of a file of hosts.
const MOST_BYTES: u64 = 16 << 20;

/// The keys accepted in a line of a file of hosts.
pub const HOSTFILE: Reader = Reader {
    of: "A line of a hostfile, under `--restarts`",
    keys: &[
        FileKey::known(
            &["slots", "cpu", "count"],
            "the ranks that the host takes, at most once for a host; spaces may stand around `=`",
        ),
        FileKey::known(
            &[
                "max_slots",
                "max-slots",
                "slots_max",
                "slots-max",
                "cpu_max",
                "cpu-max",
                "count_max",
                "count-max",
            ],
            "the ranks of a host without `slots`; otherwise at least as many",
        ),
        FileKey::refused(
            &["user", "username", "user_name", "user-name"],
            &[],
            "set User of the host in ~/.ssh/config",
        ),
        FileKey::refused(
            &["port", "ifname", "sockets", "boards", "binding"],
            &[],
            "only the number of ranks of a host is read",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Refused,
};

/// Reads the hosts of a file with one host per line, as `name`, `name slots=4` or `name:4`. If several lines
/// name a host, their ranks add up. A host named once without a number takes as many ranks as it has
/// processor cores.
///
/// # Errors
/// The file cannot be read, mpirun would refuse a line, or a line names a user.
pub(super) fn in_file(path: &Path) -> Result<Vec<NamedHost>> {
    let text =
        system::input::read_text(path, MOST_BYTES).map_err(|error| RunError::unreadable(path, error))?;
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let refused = |why: String| RunError::Refused(format!("{}: line {number}: {why}", path.display()));
        let Some(mention) = mention_in_line(line).map_err(refused)? else { continue };
        merge(&mut hosts, mention).map_err(refused)?;
    }
    if hosts.is_empty() {
        return Err(RunError::Refused(format!("{}: it names no host", path.display())));
    }
    Ok(hosts)
}

/// Parses the hosts of `--host`, each as `name`, `name:4` or `name:auto`. Each mention without a number adds
/// one rank.
///
/// # Errors
/// A sentence about a host that mpirun would refuse.
pub(super) fn in_option(text: &str) -> std::result::Result<Vec<NamedHost>, String> {
    let mut hosts: Vec<NamedHost> = Vec::new();
    for word in text.split(',') {
        let (name, slots) = named(word)?;
        let slots = match slots {
            None => Slots::Count(1),
            Some("auto" | "*") => Slots::Cores,
            Some(digits) => Slots::Count(count(digits)?),
        };
        match hosts.iter_mut().find(|host| host.name == name) {
            None => hosts.push(NamedHost { name: name.to_owned(), slots }),
            Some(host) => host.slots = host.slots.and(slots),
        }
    }
    Ok(hosts)
}

/// A host in a line of a file, with its number of ranks.
struct Mention {
    name: String,
    slots: Option<usize>,
}

/// Parses the host of a line; `None` for an empty line or a comment.
fn mention_in_line(line: &str) -> std::result::Result<Option<Mention>, String> {
    let line = ["#", "//"].iter().fold(line, |line, comment| line.split(comment).next().unwrap_or_default());
    // Spaces may stand around the sign.
    let line = line.split('=').map(str::trim).collect::<Vec<_>>().join("=");
    let mut words = line.split_whitespace();
    let Some(first) = words.next() else { return Ok(None) };
    let (name, beside) = named(first)?;
    let mut slots = beside.map(count).transpose()?;
    let mut most = None;
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return Err(format!("{word:?} is no setting of a host, as slots=4 is"));
        };
        HOSTFILE.check_text(key, value)?;
        let target = if ["slots", "cpu", "count"].contains(&key) { &mut slots } else { &mut most };
        if target.replace(count(value)?).is_some() {
            return Err(format!("{key} is there twice"));
        }
    }
    if let (Some(slots), Some(most)) = (slots, most)
        && slots > most
    {
        return Err(format!("slots={slots} is more than max_slots={most}"));
    }
    Ok(Some(Mention { name: name.to_owned(), slots: slots.or(most) }))
}

/// Adds a mention to the hosts found in earlier lines.
fn merge(hosts: &mut Vec<NamedHost>, mention: Mention) -> std::result::Result<(), String> {
    let Mention { name, slots } = mention;
    let Some(host) = hosts.iter_mut().find(|host| host.name == name) else {
        let slots = slots.map_or(Slots::Cores, Slots::Count);
        hosts.push(NamedHost { name, slots });
        return Ok(());
    };
    host.slots = match (host.slots, slots) {
        (_, Some(_)) => return Err(format!("an earlier line names {name}, so this one has no slots")),
        // Each mention without a number is a rank, if there are several.
        (Slots::Cores, None) => Slots::Count(2),
        (Slots::Count(slots), None) => Slots::Count(slots + 1),
    };
    Ok(())
}

/// Splits `name:slots` into the name and the text of its slots.
fn named(word: &str) -> std::result::Result<(&str, Option<&str>), String> {
    let (name, slots) = match word.split_once(':') {
        Some((name, slots)) if !slots.contains(':') => (name, Some(slots)),
        Some(_) => return Err(format!("{word}: mpirun takes no IPv6 addresses: write the host's name")),
        None => (word, None),
    };
    if name.contains('@') {
        return Err(format!("{word}: it names a user: set User of the host in ~/.ssh/config"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(format!("{word:?} is no name or address of a host"));
    }
    Ok((name, slots))
}

fn count(digits: &str) -> std::result::Result<usize, String> {
    match digits.parse() {
        Ok(0) => Err("0 ranks: leave out the host".to_owned()),
        Ok(slots) => Ok(slots),
        Err(_) => Err(format!("{digits:?} is not a number of ranks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: Slots) -> NamedHost {
        NamedHost { name: name.to_owned(), slots }
    }

    /// Expects the hosts on which mpirun of Open MPI 4.1 starts with these files, or its refusals.
    #[test]
    fn files_are_read_as_mpirun_reads_them() {
        use Slots::{Cores, Count};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            in_file(&path)
        };
        let table: [(&str, &[(&str, Slots)]); 18] = [
            ("a slots=2\n", &[("a", Count(2))]),
            ("a slots = 2\n", &[("a", Count(2))]),
            ("a slots= 2\n", &[("a", Count(2))]),
            ("  a\tslots =2   # four\r\n", &[("a", Count(2))]),
            ("a cpu=2\nb count=3", &[("a", Count(2)), ("b", Count(3))]),
            ("// two ranks\na slots=2 // here\n", &[("a", Count(2))]),
            ("a\n", &[("a", Cores)]),
            ("a\na\n", &[("a", Count(2))]),
            ("a\nb\na\na\n", &[("a", Count(3)), ("b", Cores)]),
            ("a slots=2\na\n", &[("a", Count(3))]),
            ("a max_slots=3\n", &[("a", Count(3))]),
            ("a max-slots = 3\n", &[("a", Count(3))]),
            ("a slots=2 max_slots=3\n", &[("a", Count(2))]),
            ("a slots=02\n", &[("a", Count(2))]),
            (
                "# two hosts\n\na:2 # as MPICH has it\n10.0.0.7 slots=1\n",
                &[("a", Count(2)), ("10.0.0.7", Count(1))],
            ),
            ("node-1.cluster_a.local slots=4", &[("node-1.cluster_a.local", Count(4))]),
            ("a slots=2 slots_max=2", &[("a", Count(2))]),
            ("LOCALHOST slots=2", &[("LOCALHOST", Count(2))]),
        ];
        for (text, expected) in table {
            let expected: Vec<_> = expected.iter().map(|(name, slots)| host(name, *slots)).collect();
            assert_eq!(read(text).unwrap(), expected, "{text:?}");
        }
        for (text, words) in [
            ("", "it names no host"),
            ("# none\n\n", "it names no host"),
            ("a\nb slots=x\n", "line 2: \"x\" is not a number of ranks"),
            ("a slots=-1", "line 1: \"-1\" is not a number of ranks"),
            ("a slots=auto", "line 1: \"auto\" is not a number of ranks"),
            ("a slots=", "line 1: \"\" is not a number of ranks"),
            ("a slots=0", "line 1: 0 ranks: leave out the host"),
            ("a slots 2", "line 1: \"slots\" is no setting of a host"),
            ("a four", "line 1: \"four\" is no setting of a host"),
            ("a slot=2", "line 1: \"slot\" is not known; known: slots"),
            ("a SLOTS=2", "line 1: \"SLOTS\" is not known"),
            ("a slots=1 slots=2", "line 1: slots is there twice"),
            ("a slots=3 max_slots=2", "line 1: slots=3 is more than max_slots=2"),
            ("a slots=1\na slots=2", "line 2: an earlier line names a"),
            ("a\na slots=2", "line 2: an earlier line names a"),
            ("me@a slots=2", "line 1: me@a: it names a user: set User"),
            ("a slots=2 username=me", "line 1: username = me is not supported: set User"),
            ("a slots=2 port=22", "line 1: port = 22 is not supported"),
            ("a,slots=2", "line 1: \"a,slots=2\" is no name"),
            ("\"a\" slots=2", "line 1: "),
            ("^a slots=2", "line 1: \"^a\" is no name"),
            ("+n0", "line 1: \"+n0\" is no name"),
            ("fe80::1 slots=2", "line 1: fe80::1: mpirun takes no IPv6"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.exit_status() == 2 && refused.to_string().contains(words), "{text:?}: {refused}");
        }
    }

    #[test]
    fn options_are_read_as_mpirun_reads_them() {
        use Slots::{Cores, Count};
        let table: [(&str, &[(&str, Slots)]); 6] = [
            ("a", &[("a", Count(1))]),
            ("a,b:2", &[("a", Count(1)), ("b", Count(2))]),
            ("a,a,b", &[("a", Count(2)), ("b", Count(1))]),
            ("a:2,a", &[("a", Count(3))]),
            ("a:*", &[("a", Cores)]),
            ("a:auto,b", &[("a", Cores), ("b", Count(1))]),
        ];
        for (text, expected) in table {
            let expected: Vec<_> = expected.iter().map(|(name, slots)| host(name, *slots)).collect();
            assert_eq!(in_option(text).unwrap(), expected, "{text}");
        }
        for text in ["", "a,", "a:x", "a:0", "me@a", "a:2:3", "::1", "a, b"] {
            in_option(text).unwrap_err();
        }
    }
}
