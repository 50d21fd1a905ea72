//! Recognises names and addresses of this host.

use std::time::Duration;

use collective::tcp::is_of_this_host;
use system::threads;
use telemetry::host_name;

/// Time limit for looking up a name.
const LOOK_UP: Duration = Duration::from_secs(2);

/// Returns, for each name or address, whether it belongs to this host. All are looked up concurrently.
pub(super) fn are_own<'a>(names: impl Iterator<Item = &'a str>) -> Vec<bool> {
    let own = host_name();
    let start = |name: &str| {
        if name.eq_ignore_ascii_case("localhost") || name.eq_ignore_ascii_case(&own) {
            return Err(true);
        }
        let name = name.to_owned();
        threads::spawn("look up", move || is_of_this_host(&name, LOOK_UP)).map_err(|_| false)
    };
    let all: Vec<_> = names.map(start).collect();
    // A thread that panicked has printed why.
    all.into_iter()
        .map(|one| one.map_or_else(|known| known, |thread| thread.join().unwrap_or(false)))
        .collect()
}
