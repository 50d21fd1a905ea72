//! Starts threads, and determines the number of compute threads.

use std::io::Result;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Environment variable with the number of compute threads.
pub const VARIABLE: &str = "RAYON_NUM_THREADS";
/// Maximum number of ranks as threads of one process; their queues grow quadratically.
const MOST_RANKS: usize = 256;
/// Size of each thread's stack in bytes. The system allocates only the pages used, and environment variables
/// cannot reduce it.
pub const STACK_BYTES: usize = 8 << 20;

/// Returns the number of processors available to this process.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of compute threads of a process that is alone on its host.
#[must_use]
pub fn computing() -> usize {
    number(std::env::var(VARIABLE).ok().as_deref(), processors(), 1).0
}

/// Starts the compute threads, once per process. Their number is [`VARIABLE`], limited to the processors, or
/// by default the processors divided by the `processes` on this host. It affects no result.
///
/// Returns a warning if the variable's value was not used, and an error sentence if the system refuses.
pub fn start_computing(processes: usize) -> std::result::Result<Option<String>, String> {
    static STARTED: OnceLock<std::result::Result<Option<String>, String>> = OnceLock::new();
    STARTED.get_or_init(|| start(processes)).clone()
}

fn start(processes: usize) -> std::result::Result<Option<String>, String> {
    let value = std::env::var(VARIABLE).ok();
    let (threads, warning) = number(value.as_deref(), processors(), processes);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .stack_size(STACK_BYTES)
        .thread_name(|index| format!("compute-{index}"));
    // An already existing pool is not an error: a program that embeds this one may have its own.
    match pool.build_global() {
        Err(error) if rayon_failed(&error) => Err(format!(
            "{threads} threads cannot be started: {error}; a limit of processes (ulimit -u) or memory is too low"
        )),
        _ => Ok(warning),
    }
}

fn rayon_failed(error: &rayon::ThreadPoolBuildError) -> bool {
    std::error::Error::source(error).is_some()
}

/// Returns the number of threads to start, and a warning if `value` is not a number or exceeds the
/// processors.
fn number(value: Option<&str>, processors: usize, processes: usize) -> (usize, Option<String>) {
    let share = (processors / processes.max(1)).max(1);
    match value.map(|value| (value, value.trim().parse::<usize>())) {
        None | Some((_, Ok(0))) => (share, None),
        Some((_, Ok(asked))) if asked <= processors => (asked, None),
        Some((value, Ok(_))) => {
            let text =
                format!("{VARIABLE}={value}: this process has {processors} processors, and takes no more");
            (processors, Some(text))
        }
        Some((value, Err(_))) => {
            (share, Some(format!("{VARIABLE}={value} is no number of threads and has no effect")))
        }
    }
}

/// Checks the number of ranks as threads of one process. The error is a sentence that there are too many.
pub fn check_ranks(ranks: usize) -> std::result::Result<(), String> {
    if ranks <= MOST_RANKS {
        return Ok(());
    }
    Err(format!("{ranks} ranks as threads: one process has at most {MOST_RANKS}; mpirun starts more"))
}

/// Starts a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}

/// Starts a thread in `scope`.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_bounded_by_the_processors() {
        for (value, processes, threads, warns) in [
            (None, 1, 8, false),
            (None, 4, 2, false),
            (None, 99, 1, false),
            (Some("3"), 4, 3, false),
            (Some("0"), 2, 4, false),
            (Some("99999"), 1, 8, true),
            (Some("many"), 2, 4, true),
        ] {
            let (actual, warning) = number(value, 8, processes);
            assert_eq!((actual, warning.is_some()), (threads, warns), "{value:?} {warning:?}");
        }
    }
}
