//! This process before a command starts: the signals of its limits, and its threads.

use run::Startup;

use crate::error::CliError;
use crate::output::note;

/// Has a file that would become too large be an error instead of the end of the process, and starts the
/// threads that compute; a rank of a job starts them when it knows how many ranks share its host. `joins`:
/// whether the command joins the job that a launcher started.
///
/// Errors: a command of one process as several; the system refuses.
pub(crate) fn prepare(joins: bool) -> Result<(), CliError> {
    run::heed_limits()?;
    match Startup::launched() {
        Some(_) if joins => return Ok(()),
        // Others of the job would wait for this process.
        Some(processes) if processes > 1 => {
            let text =
                format!("a launcher started {processes} processes, and this command is one: start it alone");
            return Err(CliError::Refused(text));
        }
        _ => {}
    }
    if let Some(warning) = system::threads::start_computing(1).map_err(CliError::Refused)? {
        note(&format!("plimsoll: {warning}"));
    }
    Ok(())
}
