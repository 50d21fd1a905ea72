//! Prepares this process before a command starts: checks limits, and starts threads.

use device::host::AddressLimit;
use run::Startup;
use system::numbers::grouped;
use telemetry::log::Log;

use crate::error::CliError;
use crate::output::note;
use crate::variables;

/// Minimum stack size of the first thread in bytes.
const LEAST_STACK: u64 = 256 << 10;
/// Minimum address space in bytes besides the program's and its threads' stacks.
const LEAST_ADDRESSES: u64 = 64 << 20;

/// Checks the limit on the first thread's stack (`ulimit -s`); other threads' stacks have fixed sizes.
///
/// # Errors
/// The limit is too small; the error is a sentence.
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

/// Checks that the limit on address space (`ulimit -v`, `ulimit -d`) exceeds what the program and `threads`
/// stacks need. Otherwise, any allocation could end the process.
///
/// # Errors
/// The limit is too small; the error is a sentence.
pub(crate) fn check_addresses(threads: usize) -> Result<(), String> {
    let Some(limit) = AddressLimit::of_process() else { return Ok(()) };
    let stacks = (threads * system::threads::STACK_BYTES) as u64;
    let needed = limit.reserved().unwrap_or(0) + stacks + LEAST_ADDRESSES;
    if limit.bytes >= needed {
        return Ok(());
    }
    let with_threads = match threads {
        0 => String::new(),
        _ => format!(" with {threads} threads (RAYON_NUM_THREADS sets fewer)"),
    };
    let name = limit.name();
    let limit = grouped(limit.bytes);
    let needed = grouped(needed);
    Err(format!(
        "{name} allows {limit} bytes of addresses, and this program needs at least {needed}{with_threads}"
    ))
}

/// Makes exceeding the file-size limit an error instead of a fatal signal, and starts the compute threads. If
/// the command `joins` a launcher's job, a rank starts them later, once it knows how many ranks share its
/// host.
///
/// # Errors
/// The log filter is invalid, a launcher started several processes of a single-process command, or the system
/// refuses.
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
        // The job's other processes would wait for this one.
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
    // One further thread works, and one writes files.
    check_addresses(system::threads::computing() + 2).map_err(CliError::Refused)?;
    if let Some(warning) = system::threads::start_computing(1).map_err(CliError::Refused)? {
        note(&format!("plimsoll: warning: {warning}"));
    }
    Ok(())
}
