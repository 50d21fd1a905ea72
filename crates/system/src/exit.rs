//! Ends the process.

use std::io::Write;

/// Variables through which profilers load themselves into processes. Some write their results in exit
/// handlers.
const INJECTIONS: [&str; 2] = ["CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"];

/// Ends the process with an exit status, after flushing standard output.
///
/// Exit handlers of libraries are not run, unless a profiler is loaded. They free objects that the libraries'
/// threads may still use, such as communicators of GPUs, so a successful run would crash.
pub fn exit(status: i32) -> ! {
    if INJECTIONS.iter().any(|variable| std::env::var_os(variable).is_some()) {
        #[allow(clippy::disallowed_methods, reason = "the profiler's exit handlers are needed")]
        std::process::exit(status);
    }
    // Output that cannot be written has no reader.
    let _ = std::io::stdout().flush();
    signal_hook::low_level::exit(status)
}
