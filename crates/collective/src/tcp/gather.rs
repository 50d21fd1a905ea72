//! The start of a job on rank 0: all ranks arrive, learn each other's addresses, and report that they are
//! connected.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use system::terminal;

use crate::tcp::channel::Channel;
use crate::tcp::door::{Arrival, Door};
use crate::tcp::error::StartError;
use crate::tcp::handshake::random;
use crate::tcp::hello::{Answer, Hello, SESSION_BYTES, Seat, Session, answer_bytes};
use crate::tcp::member::{Member, NOTICE, PAUSE};

/// Maximum time for sending the last answer to the ranks.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time for late ranks to report their own reason, before rank 0 gives up.
const OWN_WORDS: Duration = Duration::from_secs(2);

/// The ranks that have arrived.
struct Ranks {
    world_size: usize,
    /// Arrivals by rank; `None` for rank 0.
    arrived: Vec<Option<Arrival>>,
    own: Hello,
}

/// Waits for all ranks of the job, and returns the connections to them in rank order.
///
/// # Errors
/// A rank does not arrive within `timeout`, or its settings differ. The other ranks get the same message.
pub(super) fn gather(
    member: &Member,
    mut door: Door,
    timeout: Duration,
) -> Result<Vec<Option<TcpStream>>, StartError> {
    let mut session: Session = [0; SESSION_BYTES];
    random(&mut session).map_err(|error| StartError::Absent(format!("no random bytes: {error}")))?;
    let port = door.port().unwrap_or(member.port);
    let mut ranks = Ranks {
        world_size: member.world_size,
        arrived: (0..member.world_size).map(|_| None).collect(),
        own: Hello::new(member, port, session),
    };
    let started = ranks.await_arrivals(&mut door, timeout).and_then(|()| {
        ranks.seat(session);
        ranks.await_ready(timeout)
    });
    if let Err(error) = started {
        ranks.refuse(&error, &mut door);
        return Err(error);
    }
    ranks.send_all(&Answer::Start);
    ranks.flush(Instant::now() + LAST_WORDS);
    Ok(ranks.arrived.into_iter().map(|rank| rank.map(|rank| rank.channel.into_stream())).collect())
}

impl Ranks {
    fn await_arrivals(&mut self, door: &mut Door, timeout: Duration) -> Result<(), StartError> {
        let begun = Instant::now();
        let mut notice = Some(NOTICE).filter(|notice| *notice < timeout);
        while !self.missing().is_empty() {
            // Ranks that arrive together with a refused one are admitted, so that they learn the reason.
            let admitted: Vec<_> = door.arrivals().into_iter().map(|arrival| self.admit(arrival)).collect();
            admitted.into_iter().collect::<Result<(), _>>()?;
            self.check_connected()?;
            let waited = begun.elapsed();
            if waited >= timeout {
                let why = door.refused().map_or(String::new(), |refused| format!("; {refused}"));
                let missing = named(&self.missing());
                let seconds = timeout.as_secs();
                return Err(StartError::Absent(format!(
                    "{missing} did not connect to rank 0 on {} within {seconds} s{why}",
                    self.own.host
                )));
            }
            if notice.take_if(|notice| waited >= *notice).is_some() {
                let missing = named(&self.missing());
                let port = self.own.port;
                let seconds = timeout.as_secs();
                terminal::say(&format!(
                    "plimsoll: waiting for {missing} to connect to port {port} of {}, {seconds} s at most",
                    self.own.host
                ));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Adds a rank that has arrived.
    ///
    /// # Errors
    /// The rank's settings differ from rank 0's, or it has arrived before.
    fn admit(&mut self, arrival: Arrival) -> Result<(), StartError> {
        let hello = &arrival.hello;
        let own = &self.own;
        let other = hello.named();
        let problem = if hello.version != own.version {
            Some(format!("{other} is Plimsoll {}, and rank 0 is {}", hello.version, own.version))
        } else if hello.world_size != own.world_size {
            let theirs = hello.world_size;
            let mine = own.world_size;
            Some(format!("{other} was started with WORLD_SIZE={theirs}, and rank 0 with {mine}"))
        } else if hello.rank == 0 || hello.rank >= own.world_size {
            Some(format!("{other} cannot connect to rank 0 of {}", own.world_size))
        } else {
            let first = self.arrived[hello.rank].as_ref();
            first.map(|first| {
                let rank = hello.rank;
                let first = first.hello.process();
                let second = hello.process();
                format!("rank {rank} is there twice: {first}, and {second}")
            })
        };
        match problem {
            None => {
                let rank = hello.rank;
                self.arrived[rank] = Some(arrival);
                Ok(())
            }
            Some(problem) => {
                let error = StartError::Refused(problem);
                let mut channel = arrival.channel;
                channel.send_parcel(&Answer::refusing(&error).encode());
                Err(error)
            }
        }
    }

    /// Checks that the ranks are still connected.
    ///
    /// # Errors
    /// A rank has ended, or reports why it cannot start.
    fn check_connected(&mut self) -> Result<(), StartError> {
        let most = answer_bytes(self.world_size);
        for arrival in self.arrived.iter_mut().flatten() {
            match arrival.channel.parcel(most) {
                Ok(None) => {}
                Ok(Some(parcel)) => return Err(reported(&arrival.hello, &parcel)),
                Err(broken) => return Err(lost(&arrival.hello, &broken)),
            }
        }
        Ok(())
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.world_size).filter(|rank| self.arrived[*rank].is_none()).collect()
    }

    /// Sends every rank the addresses of all others.
    fn seat(&mut self, session: Session) {
        let own = Seat { address: None, port: self.own.port, host: self.own.host.clone() };
        let others = self.arrived.iter().flatten().map(|arrival| Seat {
            address: Some(arrival.from).filter(|address| !address.is_loopback()),
            port: arrival.hello.port,
            host: arrival.hello.host.clone(),
        });
        let seats = std::iter::once(own).chain(others).collect();
        self.send_all(&Answer::Seats(session, seats));
    }

    /// Waits until every rank is connected with all others.
    fn await_ready(&mut self, timeout: Duration) -> Result<(), StartError> {
        let deadline = Instant::now() + timeout + OWN_WORDS;
        let most = answer_bytes(self.world_size);
        let mut ready = vec![false; self.world_size];
        while self.arrived.iter().flatten().any(|arrival| !ready[arrival.hello.rank]) {
            for arrival in self.arrived.iter_mut().flatten() {
                match arrival.channel.parcel(most) {
                    Ok(None) => {}
                    Ok(Some(parcel)) if Answer::decode(&parcel) == Some(Answer::Ready) => {
                        ready[arrival.hello.rank] = true;
                    }
                    Ok(Some(parcel)) => return Err(reported(&arrival.hello, &parcel)),
                    Err(broken) => return Err(lost(&arrival.hello, &broken)),
                }
            }
            if Instant::now() >= deadline {
                let late: Vec<usize> = (1..self.world_size).filter(|rank| !ready[*rank]).collect();
                let seconds = timeout.as_secs();
                let text =
                    format!("{} did not connect with all other ranks within {seconds} s", named(&late));
                return Err(StartError::Absent(text));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn send_all(&mut self, answer: &Answer) {
        let bytes = answer.encode();
        self.arrived.iter_mut().flatten().for_each(|arrival| arrival.channel.send_parcel(&bytes));
    }

    /// Sends every rank the reason why the job does not start, including ranks that arrive a little later.
    fn refuse(&mut self, error: &StartError, door: &mut Door) {
        let answer = Answer::refusing(error);
        self.send_all(&answer);
        let deadline = Instant::now() + LAST_WORDS;
        while !self.missing().is_empty() && Instant::now() < deadline {
            for mut arrival in door.arrivals() {
                arrival.channel.send_parcel(&answer.encode());
                let rank = arrival.hello.rank;
                if let Some(missing) = self.arrived.get_mut(rank).filter(|arrived| arrived.is_none()) {
                    *missing = Some(arrival);
                }
            }
            std::thread::sleep(PAUSE);
        }
        self.flush(deadline);
    }

    fn flush(&mut self, deadline: Instant) {
        let is_unsent = |channel: &mut Channel| matches!(channel.flush(), Ok(false));
        while self.arrived.iter_mut().flatten().any(|arrival| is_unsent(&mut arrival.channel))
            && Instant::now() < deadline
        {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Returns the error in a rank's message.
fn reported(hello: &Hello, parcel: &[u8]) -> StartError {
    let refusal = Answer::decode(parcel).and_then(|answer| answer.refusal());
    let out_of_turn = || StartError::Absent(format!("{} sent a message out of turn", hello.named()));
    refusal.unwrap_or_else(out_of_turn)
}

fn lost(hello: &Hello, broken: &dyn std::fmt::Display) -> StartError {
    StartError::Absent(format!("{} ended before all ranks had started: {broken}", hello.named()))
}

/// Formats a list of ranks for a message.
fn named(ranks: &[usize]) -> String {
    const MOST: usize = 8;
    match ranks {
        [rank] => format!("rank {rank}"),
        _ => {
            let shown: Vec<_> = ranks.iter().take(MOST).map(usize::to_string).collect();
            let more = ranks.len().saturating_sub(MOST);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("ranks {}{more}", shown.join(", "))
        }
    }
}
