//! This process before a command starts: the signals of its limits, and its threads.

use device::host::AddressLimit;
use run::Startup;
use system::numbers::grouped;
use telemetry::log::Log;

use crate::error::CliError;
use crate::output::note;
use crate::variables;

/// Least bytes of the first thread's stack.
const LEAST_STACK: u64 = 256 << 10;
/// Least bytes of addresses beyond those of the program and of the stacks of its threads.
const LEAST_ADDRESSES: u64 = 64 << 20;

/// Checks the limit on the first thread's stack (`ulimit -s`); other threads have stacks of their own size.
///
/// # Errors
/// Too small a limit, in a sentence.
pub(crate) fn check_stack() -> Result<(), String> {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max stack size"));
    match line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()) {
        Some(bytes) if bytes < LEAST_STACK => {
            let limit = grouped(bytes);
            let needed = grouped(LEAST_STACK);
            Err(format!("a stack of {limit} bytes (ulimit -s) is too small: {needed} are needed"))
        }
        _ => Ok(()),
    }
}

/// Checks that the limit on addresses (`ulimit -v`, `ulimit -d`) leaves some beyond those of the program and
/// of the stacks of so many threads: without them any allocation could end the process.
///
/// # Errors
/// Too small a limit, in a sentence.
pub(crate) fn check_addresses(threads: usize) -> Result<(), String> {
    let Some(limit) = AddressLimit::of_process() else { return Ok(()) };
    let stacks = (threads * system::threads::STACK_BYTES) as u64;
    let needed = limit.reserved().unwrap_or(0) + stacks + LEAST_ADDRESSES;
    if limit.bytes >= needed {
        return Ok(());
    }
    let of = match threads {
        0 => String::new(),
        _ => format!(" with {threads} threads (RAYON_NUM_THREADS sets fewer)"),
    };
    let name = limit.name();
    let limit = grouped(limit.bytes);
    let needed = grouped(needed);
    Err(format!("{name} allows {limit} bytes of addresses, and this program needs at least {needed}{of}"))
}

/// Makes exceeding the file size limit an error instead of the end of the process, and starts the compute
/// threads; a rank of a job starts them once it knows how many ranks share its host. `joins`: whether the
/// command joins a launcher's job.
///
/// # Errors
/// An invalid filter of the log; several processes of a command that runs as one; the system refuses.
pub(crate) fn prepare(joins: bool) -> Result<(), CliError> {
    Log::check_variable().map_err(|error| CliError::Refused(error.to_string()))?;
    device::heap::return_large();
    if AddressLimit::of_process().is_some() {
        device::heap::share_arena();
    }
    run::heed_limits()?;
    if let Some(warning) = variables::warning(Startup::launched_rank()) {
        note(&format!("plimsoll: warning: {warning}"));
    }
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
    // One more thread works, and one writes files.
    check_addresses(system::threads::computing() + 2).map_err(CliError::Refused)?;
    if let Some(warning) = system::threads::start_computing(1).map_err(CliError::Refused)? {
        note(&format!("plimsoll: warning: {warning}"));
    }
    Ok(())
}
