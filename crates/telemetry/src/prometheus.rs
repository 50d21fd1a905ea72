//! A Prometheus endpoint: serves the last step's metrics over HTTP, in text format 0.0.4.

mod server;

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use system::threads;

use crate::metrics::StepMetrics;
use crate::prediction::PREDICTED_SECONDS;
use crate::rank_step::RankStep;

/// Serves the last step's metrics until dropped. No step waits for a client.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    run: String,
    last: StepMetrics,
}

#[derive(Debug, Default)]
struct Shared {
    text: Mutex<Arc<str>>,
    ended: AtomicBool,
}

impl Endpoint {
    /// Listens on `address`, for the run named `run`.
    ///
    /// # Errors
    /// The address is in use or does not belong to this host.
    pub fn listen(address: SocketAddr, run: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        let body = move || server::serve(&listener, &served.ended, &|request| answer(request, &served));
        let thread = threads::spawn("prometheus", body)?;
        let run = format!("run=\"{}\"", label(run));
        let endpoint = Endpoint { shared, address, thread: Some(thread), run, last: StepMetrics::default() };
        endpoint.show();
        Ok(endpoint)
    }

    /// Returns the address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the metrics of this step from now on. The latest records of all ranks are kept until newer ones
    /// arrive.
    pub fn set(&mut self, metrics: &StepMetrics) {
        let ranks = match metrics.ranks.is_empty() {
            true => std::mem::take(&mut self.last.ranks),
            false => metrics.ranks.clone(),
        };
        let further = FURTHER.map(|(key, _)| (key, self.last.more.remove(key)));
        self.last = StepMetrics { ranks, ..metrics.clone() };
        for (key, value) in further {
            if let Some(value) = value {
                self.last.more.entry(key).or_insert(value);
            }
        }
        self.show();
    }

    fn show(&self) {
        let text = text(&self.last, &self.run).into();
        *self.shared.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // A connection wakes the thread.
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(match own {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        if TcpStream::connect_timeout(&own, server::PATIENCE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            // The thread holds nothing that must be saved.
            let _ = thread.join();
        }
    }
}

fn answer(request: &[u8], shared: &Shared) -> Vec<u8> {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let path = words.nth(1).map(|path| path.split(|byte| *byte == b'?').next().unwrap_or_default());
    let (status, text) = match (line.starts_with(b"GET "), path) {
        (true, Some(b"/metrics")) => {
            ("200 OK", Arc::clone(&shared.text.lock().unwrap_or_else(PoisonError::into_inner)))
        }
        (true, _) => ("404 Not Found", "the figures are at /metrics\n".into()),
        (false, _) => ("405 Method Not Allowed", "only GET is answered\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    [head.as_bytes(), text.as_bytes()].concat()
}

/// Metrics of the last validation and of preference pairs, with their help texts.
const FURTHER: [(&str, &str); 7] = [
    ("validation_loss", "Loss of the last validation."),
    ("validation_top_1", "Share of validation images whose class had the highest score."),
    ("validation_top_5", "Share of validation images whose class had one of the five highest scores."),
    ("reward_accuracy", "Share of the last step's pairs whose chosen answer had the higher reward."),
    ("reward_margin", "Mean reward of the last step's chosen answers minus that of the rejected ones."),
    ("validation_reward_accuracy", "Share of validation pairs whose chosen answer had the higher reward."),
    (
        "validation_reward_margin",
        "Mean reward of validation's chosen answers minus that of the rejected ones.",
    ),
];

fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn text(metrics: &StepMetrics, run: &str) -> String {
    let mut out = String::new();
    let further =
        FURTHER.map(|(key, help)| (key, help, metrics.more.get(key).and_then(serde_json::Value::as_f64)));
    let predicted = metrics.more.get(PREDICTED_SECONDS).and_then(serde_json::Value::as_f64);
    let started = metrics.step > 0;
    let of_step = |value: f32| started.then(|| f64::from(value));
    let losses = [
        ("step", "Completed steps.", Some(metrics.step as f64)),
        ("loss", "Mean loss over the micro-batches of the last step.", of_step(metrics.loss)),
    ];
    let others = [
        ("gradient_norm", "Gradient norm of the last step before clipping.", of_step(metrics.gradient_norm)),
        ("learning_rate", "Learning rate of the last step.", of_step(metrics.learning_rate)),
        ("step_seconds", "Duration of the last step.", metrics.seconds),
        (PREDICTED_SECONDS, "Predicted duration of a step.", predicted),
        ("tokens_per_second", "Tokens or samples per second of the last step.", metrics.tokens_per_second),
        ("mfu_ratio", "Model FLOPs utilization of the last step.", metrics.mfu),
    ];
    // Writing to a string cannot fail, here and below.
    for (name, help, value) in losses.into_iter().chain(further).chain(others) {
        let Some(value) = value else { continue };
        head(&mut out, name, help);
        let _ = writeln!(out, "plimsoll_{name}{{{run}}} {}", number(value));
    }
    type Figure = (&'static str, &'static str, fn(&RankStep) -> u64);
    let of_ranks: [Figure; 5] = [
        ("allocated_bytes", "Bytes allocated.", |rank| rank.allocated_bytes),
        ("reserved_bytes", "Bytes reserved.", |rank| rank.reserved_bytes),
        ("capacity_bytes", "Bytes that the rank may reserve.", |rank| rank.capacity_bytes),
        ("peak_allocated_bytes", "Peak of the allocated bytes.", |rank| rank.peak_allocated_bytes),
        ("peak_reserved_bytes", "Peak of the reserved bytes.", |rank| rank.peak_reserved_bytes),
    ];
    for (name, help, value) in of_ranks.into_iter().filter(|_| !metrics.ranks.is_empty()) {
        head(&mut out, name, help);
        for rank in &metrics.ranks {
            let _ = writeln!(out, "plimsoll_{name}{{{run},rank=\"{}\"}} {}", rank.rank, value(rank));
        }
    }
    if metrics.ranks.iter().any(|rank| !rank.phases.is_empty()) {
        head(&mut out, "phase_seconds", "Mean time of each phase of the last steps.");
    }
    for rank in &metrics.ranks {
        for (phase, figures) in &rank.phases {
            let Some(time) = figures.microseconds else { continue };
            let rank = rank.rank;
            let seconds = time as f64 / 1e6;
            let labels = format!("{run},rank=\"{rank}\",phase=\"{}\"", label(phase));
            let _ = writeln!(out, "plimsoll_phase_seconds{{{labels}}} {seconds}");
        }
    }
    out
}

fn head(out: &mut String, name: &str, help: &str) {
    let _ = writeln!(out, "# HELP plimsoll_{name} {help}\n# TYPE plimsoll_{name} gauge");
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::*;
    use crate::PhaseFigures;

    /// A time limit that only a hang exceeds.
    const HANG: Option<Duration> = Some(Duration::from_secs(60));

    fn ask(endpoint: &Endpoint, request: &str) -> String {
        let mut client = TcpStream::connect(endpoint.address()).unwrap();
        client.set_read_timeout(HANG).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_last_step_is_served_and_other_requests_are_refused() {
        let mut endpoint = Endpoint::listen("127.0.0.1:0".parse().unwrap(), "a \"run\"\\").unwrap();
        let get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        let first = ask(&endpoint, get);
        assert!(first.contains("plimsoll_step{run=\"a \\\"run\\\"\\\\\"} 0\n") && !first.contains("_loss"));
        let phases =
            [("forward".to_owned(), PhaseFigures { microseconds: Some(1500), ..Default::default() })];
        let rank = RankStep { rank: 1, allocated_bytes: 512, phases: phases.into(), ..RankStep::default() };
        endpoint.set(&StepMetrics { step: 7, loss: 2.5, ranks: vec![rank], ..StepMetrics::default() });
        endpoint.set(&StepMetrics { step: 8, loss: f32::NAN, seconds: Some(0.25), ..StepMetrics::default() });
        let text = ask(&endpoint, get);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        for line in [
            "# TYPE plimsoll_loss gauge",
            "plimsoll_loss{run=\"a \\\"run\\\"\\\\\"} NaN",
            "plimsoll_step_seconds{run=\"a \\\"run\\\"\\\\\"} 0.25",
            "plimsoll_allocated_bytes{run=\"a \\\"run\\\"\\\\\",rank=\"1\"} 512",
            "plimsoll_phase_seconds{run=\"a \\\"run\\\"\\\\\",rank=\"1\",phase=\"forward\"} 0.0015",
        ] {
            assert!(body.lines().any(|other| other == line), "{line}: {body}");
        }
        assert!(ask(&endpoint, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&endpoint, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(&endpoint, &"x".repeat(server::MOST_REQUEST)).starts_with("HTTP/1.1 405"));
        // The port is free again once the endpoint is dropped, even if a client is connected and silent.
        let address = endpoint.address();
        let idle = TcpStream::connect(address).unwrap();
        drop(endpoint);
        drop(idle);
        drop(TcpListener::bind(address).unwrap());
    }

    #[test]
    fn idle_and_slow_clients_delay_no_other() {
        let endpoint = Endpoint::listen("127.0.0.1:0".parse().unwrap(), "run").unwrap();
        let idle: Vec<_> = (0..172).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
        let answer = ask(&endpoint, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(answer.contains("plimsoll_step"), "{answer}");
        drop(idle);
        // A request that arrives byte by byte is cut off.
        let mut slow = TcpStream::connect(endpoint.address()).unwrap();
        slow.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let is_cut_off = (0..server::MOST_REQUEST / 2).any(|_| {
            let is_gone = |error: &io::Error| error.kind() != io::ErrorKind::WouldBlock;
            let sent = slow.write_all(b"x");
            sent.is_err() || slow.read(&mut [0]).map_or_else(|error| is_gone(&error), |_| true)
        });
        assert!(is_cut_off);
    }
}
