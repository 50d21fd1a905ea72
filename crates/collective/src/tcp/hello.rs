//! Messages with which the ranks of a job find each other.

use std::net::IpAddr;

use crate::processes::Process;
use crate::tcp::error::StartError;
use crate::tcp::member::Member;

/// Maximum bytes of a [`Hello`].
pub(super) const HELLO_BYTES: usize = 4096;
/// Bytes of a job's random number.
pub(super) const SESSION_BYTES: usize = 16;

/// Maximum bytes of an answer of rank 0 to `ranks` ranks.
pub(super) fn answer_bytes(ranks: usize) -> usize {
    HELLO_BYTES + 512 * ranks
}

/// Random number of a job, drawn by rank 0.
pub(super) type Session = [u8; SESSION_BYTES];

/// First message of a connecting rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) version: String,
    pub(super) world_size: usize,
    pub(super) rank: usize,
    /// Port on which the rank listens for ranks of higher number.
    pub(super) port: u16,
    pub(super) host: String,
    pub(super) pid: u32,
    /// The job's number; zeros in a message to rank 0, which draws it.
    pub(super) session: Session,
}

impl Hello {
    pub(super) fn new(member: &Member, port: u16, session: Session) -> Self {
        let process = Process::own();
        Hello {
            version: member.version.clone(),
            world_size: member.world_size,
            rank: member.rank,
            port,
            host: one_word(&process.host),
            pid: process.pid,
            session,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Hello { version, world_size, rank, port, host, pid, session } = self;
        let session = u128::from_le_bytes(*session);
        format!("{version}\n{world_size}\n{rank}\n{port}\n{host}\n{pid}\n{session:x}").into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        Some(Hello {
            version: lines.next()?.to_owned(),
            world_size: lines.next()?.parse().ok()?,
            rank: lines.next()?.parse().ok()?,
            port: lines.next()?.parse().ok()?,
            host: lines.next()?.to_owned(),
            pid: lines.next()?.parse().ok()?,
            session: session(lines.next()?)?,
        })
    }

    /// Formats rank and host for messages.
    pub(super) fn named(&self) -> String {
        format!("rank {} on {}", self.rank, self.host)
    }

    /// Formats process and host for messages.
    pub(super) fn process(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// Address and port on which a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// The rank's address as seen by rank 0. `None` if the rank is on rank 0's host; then the address of rank
    /// 0 applies.
    pub(super) address: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) host: String,
}

/// A message between rank 0 and another rank after the [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// From rank 0, when all ranks have arrived: the addresses at which they listen.
    Seats(Session, Vec<Seat>),
    /// The job does not start: exit status and reason.
    Refused(u8, String),
    /// To rank 0: the sender is connected with all other ranks.
    Ready,
    /// From rank 0: all ranks are ready.
    Start,
}

impl Answer {
    /// Returns the message that reports this rank's error to others.
    pub(super) fn refusing(error: &StartError) -> Self {
        Answer::Refused(if matches!(error, StartError::Refused(_)) { 2 } else { 1 }, error.to_string())
    }

    /// Returns the error that another rank reports in this message, if any.
    pub(super) fn refusal(&self) -> Option<StartError> {
        match self {
            Answer::Refused(2, reason) => Some(StartError::Refused(reason.clone())),
            Answer::Refused(_, reason) => Some(StartError::Absent(reason.clone())),
            _ => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = match self {
            Answer::Seats(session, seats) => {
                let line = |Seat { address, port, host }: &Seat| {
                    let address = address.map_or("-".to_owned(), |address| address.to_string());
                    format!("\n{address} {port} {host}")
                };
                let seats: String = seats.iter().map(line).collect();
                format!("seats {:x}{seats}", u128::from_le_bytes(*session))
            }
            Answer::Refused(status, reason) => format!("refused {status} {}", shortened(reason)),
            Answer::Ready => "ready".to_owned(),
            Answer::Start => "start".to_owned(),
        };
        text.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        if let Some(refused) = text.strip_prefix("refused ") {
            let (status, reason) = refused.split_once(' ')?;
            return Some(Answer::Refused(status.parse().ok()?, reason.to_owned()));
        }
        let mut lines = text.split('\n');
        match lines.next()? {
            "ready" => Some(Answer::Ready),
            "start" => Some(Answer::Start),
            first => {
                let session = session(first.strip_prefix("seats ")?)?;
                Some(Answer::Seats(session, lines.map(seat).collect::<Option<_>>()?))
            }
        }
    }
}

fn session(text: &str) -> Option<Session> {
    u128::from_str_radix(text, 16).ok().map(u128::to_le_bytes)
}

fn seat(line: &str) -> Option<Seat> {
    let mut words = line.splitn(3, ' ');
    let address = words.next()?;
    let address = if address == "-" { None } else { Some(address.parse().ok()?) };
    Some(Seat { address, port: words.next()?.parse().ok()?, host: words.next()?.to_owned() })
}

/// Returns a host's name without white space, truncated to 255 characters as in the system.
fn one_word(host: &str) -> String {
    host.chars().filter(|character| !character.is_whitespace()).take(255).collect()
}

/// Truncates a reason so that it fits an answer.
fn shortened(reason: &str) -> String {
    reason.chars().take(HELLO_BYTES / 8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parcels_round_trip() {
        let hello = Hello {
            version: "1.2.3".to_owned(),
            world_size: 4,
            rank: 3,
            port: 4711,
            host: "box".to_owned(),
            pid: 7,
            session: [9; SESSION_BYTES],
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let seats = vec![
            Seat { address: None, port: 29500, host: "a".to_owned() },
            Seat { address: Some("10.0.0.2".parse().unwrap()), port: 1, host: "b".to_owned() },
            Seat { address: Some("fe80::1".parse().unwrap()), port: 2, host: String::new() },
        ];
        for answer in [
            Answer::Seats([7; SESSION_BYTES], seats),
            Answer::Refused(2, "rank 1 is there twice".to_owned()),
            Answer::Ready,
            Answer::Start,
        ] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        for bytes in
            [&b""[..], b"seats", b"seats x", b"refused", b"seats 1\n- 1", b"\xff", b"seats 1\n1.2 3 h"]
        {
            assert_eq!((Answer::decode(bytes), Hello::decode(bytes)), (None, None));
        }
        let long = Answer::Refused(1, "é".repeat(HELLO_BYTES)).encode();
        assert!(long.len() < HELLO_BYTES, "{}", long.len());
    }
}
