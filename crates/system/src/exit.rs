//! The end of the process.

use std::io::Write;

/// Variables with which profilers load themselves into processes. Some write their results in exit handlers.
const INJECTIONS: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

/// Ends the process with an exit status, once everything printed has been written.
///
/// Exit handlers of libraries are not run, unless a profiler is loaded: they free what the libraries' threads
/// still use, for example one that ends communicators of GPUs, and a run that has succeeded would crash.
pub fn exit(status: i32) -> ! {
    if INJECTIONS.iter().any(|variable| std::env::var_os(variable).is_some()) {
        #[allow(clippy::disallowed_methods, reason = "the profiler's exit handlers are needed")]
        std::process::exit(status);
    }
    // Nobody reads what cannot be written.
    let _ = std::io::stdout().flush();
    signal_hook::low_level::exit(status)
}
