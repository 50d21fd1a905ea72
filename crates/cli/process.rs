//! This process before a command starts: the signals of its limits, and its threads.

use run::Startup;
use system::numbers::grouped;
use telemetry::log::Log;

use crate::error::CliError;
use crate::output::note;

/// Least bytes of the first thread's stack.
const LEAST_STACK: u64 = 256 << 10;

/// Checks the limit on the first thread's stack (`ulimit -s`); other threads have stacks of their own size.
/// Errors: too small a limit, in a sentence.
pub(crate) fn check_stack() -> Result<(), String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max stack size"));
    match line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()) {
        Some(bytes) if bytes < LEAST_STACK => {
            let (limit, needed) = (grouped(bytes), grouped(LEAST_STACK));
            Err(format!("a stack of {limit} bytes (ulimit -s) is too small: {needed} are needed"))
        }
        _ => Ok(()),
    }
}

/// Makes exceeding the file size limit an error instead of the end of the process, and starts the compute
/// threads; a rank of a job starts them once it knows how many ranks share its host. `joins`: whether the
/// command joins a launcher's job.
///
/// Errors: an invalid filter of the log; several processes of a command that runs as one; the system refuses.
pub(crate) fn prepare(joins: bool) -> Result<(), CliError> {
    Log::check_variable().map_err(|error| CliError::Refused(error.to_string()))?;
    device::heap::return_large();
    if device::host::AddressLimit::of_process().is_some() {
        device::heap::share_arena();
    }
    run::heed_limits()?;
    match Startup::launched() {
        Some(_) if joins => return Ok(()),
        // The other processes of the job would wait for this one.
        Some(processes) if processes > 1 => {
            let alone =
                if std::env::var_os("WORLD_SIZE").is_some() { ", as with env -u WORLD_SIZE" } else { "" };
            let text = format!(
                "a launcher started {processes} processes, and this command is one: start it alone{alone}"
            );
            return Err(CliError::Refused(text));
        }
        _ => {}
    }
    if let Some(warning) = system::threads::start_computing(1).map_err(CliError::Refused)? {
        note(&format!("plimsoll: {warning}"));
    }
    Ok(())
}
