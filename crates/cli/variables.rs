//! Environment variables of Plimsoll.

use system::readers::{FileKey, Reader, Unlisted};

/// Prefix of the variables' names.
const PREFIX: &str = "PLIMSOLL_";
/// Variable set for the ranks of a job that is restarted after a failure.
const JOB: &str = "PLIMSOLL_JOB";
/// Variables that a job sets for its ranks.
const OF_RANKS: &[&str] = &[JOB, "PLIMSOLL_RESTART", "PLIMSOLL_MEMORY"];
/// Variables used by tests.
const OF_TESTS: &[&str] = &[
    "PLIMSOLL_FLIP",
    "PLIMSOLL_HOLD",
    "PLIMSOLL_LONG_TESTS",
    "PLIMSOLL_NEED_NVRTC",
    "PLIMSOLL_NEED_PEERS",
    "PLIMSOLL_NO_WHEEL",
    "PLIMSOLL_PYTHON",
    "PLIMSOLL_SKIPPED",
    "PLIMSOLL_SLOW",
    "PLIMSOLL_TEST_REPEATS",
    "PLIMSOLL_TEST_SCENARIO",
    "PLIMSOLL_TEST_SEED",
    "PLIMSOLL_TINYSHAKESPEARE",
    "PLIMSOLL_WRITE_DOCS",
];

/// All environment variables of Plimsoll's programs, scripts and tests.
pub const ENVIRONMENT: Reader = Reader {
    of: "Environment variables",
    keys: &[
        FileKey::known(&["PLIMSOLL_LOG"], "the log level (error, warn, info, debug, trace), or a filter"),
        FileKey::known(
            &["PLIMSOLL_START_SECONDS"],
            "seconds in which all ranks must start, a whole number; by default 300 over TCP and 60 with MPI",
        ),
        FileKey::known(&["PLIMSOLL_PORT"], "the port of rank 0, instead of `MASTER_PORT`"),
        FileKey::known(
            &["PLIMSOLL_SECRET"],
            "the secret that the ranks on several hosts prove to each other, at least 16 bytes",
        ),
        FileKey::known(&["PLIMSOLL_ALLOC_CONF"], "the default of `memory.allocator`"),
        FileKey::known(&["PLIMSOLL_CACHE_DIR"], "the directory of compiled kernels"),
        FileKey::known(
            &["PLIMSOLL_RESTARTS", "PLIMSOLL_GROW"],
            "`--restarts` and `--grow` of `launch/slurm.sbatch`",
        ),
        FileKey::known(OF_RANKS, "what `plimsoll launch` tells its ranks"),
        FileKey::known(OF_TESTS, "tests"),
        FileKey::known(
            &["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
            "a rank's part in a job, as torchrun sets it",
        ),
    ],
    shared: &[],
    unlisted: Unlisted::Other(
        "Other variables that begin with `PLIMSOLL_` are named in one line. A number that is none, or is out of its range, is \
         refused by name.",
    ),
};

/// Returns a warning about unknown variables with Plimsoll's prefix; `None` if there are none, or if another
/// process of the job prints it.
pub(crate) fn warning(rank: Option<usize>) -> Option<String> {
    let is_printed = rank.is_none_or(|rank| rank == 0) && std::env::var_os(JOB).is_none();
    let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
    is_printed.then(|| in_words(names)).flatten()
}

fn in_words(names: impl Iterator<Item = String>) -> Option<String> {
    let mut unknown: Vec<_> =
        names.filter(|name| name.starts_with(PREFIX) && ENVIRONMENT.key(name).is_none()).collect();
    unknown.sort();
    // Variables for users, without the common prefix.
    let is_internal = |name: &str| OF_RANKS.contains(&name) || OF_TESTS.contains(&name);
    let listed = || {
        let all = ENVIRONMENT.keys.iter().flat_map(FileKey::names).filter(|name| !is_internal(name));
        all.filter_map(|name| name.strip_prefix(PREFIX))
    };
    let named = |name: &String| match keys::nearest(name.trim_start_matches(PREFIX), listed()) {
        Some(near) => format!("{name} (did you mean {PREFIX}{near}?)"),
        None => name.clone(),
    };
    let all: Vec<_> = unknown.iter().map(named).collect();
    (!all.is_empty()).then(|| format!("unknown environment variables are ignored: {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::{PREFIX, in_words};

    #[test]
    fn unknown_variables_are_named_in_one_line() {
        let warning_for = |names: &[&str]| in_words(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(warning_for(&["PATH", "PLIMSOLL", "PLIMSOLL_LOG", "RANK", "plimsoll_x"]), None);
        let line =
            warning_for(&["PLIMSOLL_XYZ_UNLIKE_ANY", "PLIMSOLL_STRAT_SECONDS", "PLIMSOLL_PORT"]).unwrap();
        let expected = "unknown environment variables are ignored: PLIMSOLL_STRAT_SECONDS (did you mean \
                        PLIMSOLL_START_SECONDS?), PLIMSOLL_XYZ_UNLIKE_ANY";
        assert_eq!(line, expected);
        // Advice is based neither on the prefix nor on variables set by programs.
        for bare in ["FOO", "JOBS", "SLOWLY"] {
            let name = format!("{PREFIX}{bare}");
            let expected = format!("unknown environment variables are ignored: {name}");
            assert_eq!(warning_for(&[name.as_str()]), Some(expected));
        }
    }
}
