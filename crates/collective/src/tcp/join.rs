//! The start of a job on ranks other than 0: they find rank 0, then each other.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use system::terminal;

use crate::tcp::address::{Reach, resolve};
use crate::tcp::channel::{Broken, Channel};
use crate::tcp::door::{Door, HANDSHAKE};
use crate::tcp::error::StartError;
use crate::tcp::handshake::{Handshake, Refusal, Role, Secret};
use crate::tcp::hello::{Answer, Hello, SESSION_BYTES, Seat, answer_bytes};
use crate::tcp::member::{Member, NOTICE, PAUSE};

/// Timeout of one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// Extra time that a rank waits for other ranks, beyond rank 0's limit.
const SLACK: Duration = Duration::from_secs(10);

/// Joins the job at rank 0, and returns the connections to all other ranks in rank order.
///
/// # Errors
/// Rank 0 does not answer within `timeout` or refuses the job, or another rank cannot be reached.
pub(super) fn join(
    member: &Member,
    mut door: Door,
    reach: Reach,
    timeout: Duration,
) -> Result<Vec<Option<TcpStream>>, StartError> {
    let mut zero = find(member, reach, timeout)?;
    let port = door.port().map_err(|error| StartError::Absent(format!("no port to listen on: {error}")))?;
    zero.send_parcel(&Hello::new(member, port, [0; SESSION_BYTES]).encode());
    let (session, seats) = match answer(member, &mut zero, Instant::now() + timeout + SLACK)? {
        Answer::Seats(session, seats) if seats.len() == member.world_size => (session, seats),
        _ => return Err(out_of_turn()),
    };
    let own = Hello::new(member, port, session);
    let mut mesh = Mesh::new(member, &seats, &zero, own);
    if let Err(error) = mesh.connect(member, &mut door, &mut zero, timeout) {
        zero.send_parcel(&Answer::refusing(&error).encode());
        return Err(error);
    }
    zero.send_parcel(&Answer::Ready.encode());
    match answer(member, &mut zero, Instant::now() + timeout + SLACK)? {
        Answer::Start => {
            let mut channels = mesh.channels;
            channels[0] = Some(zero);
            Ok(channels.into_iter().map(|channel| channel.map(Channel::into_stream)).collect())
        }
        _ => Err(out_of_turn()),
    }
}

fn out_of_turn() -> StartError {
    StartError::Absent("rank 0 sent a message out of turn".to_owned())
}

/// Connects to rank 0, retrying until the deadline.
fn find(member: &Member, reach: Reach, timeout: Duration) -> Result<Channel, StartError> {
    let deadline = Instant::now() + timeout;
    let Member { address, port, .. } = member;
    let zero = format!("rank 0 at {address}, port {port},");
    let mut why = String::new();
    // A missing rank 0 cannot report itself.
    let mut notice = Some(Instant::now() + NOTICE).filter(|notice| member.rank == 1 && *notice < deadline);
    loop {
        let addresses = match reach {
            Reach::Host(host) => Ok(vec![SocketAddr::new(host, *port)]),
            Reach::Network => resolve(address, *port, deadline),
        };
        let addresses = addresses.unwrap_or_else(|unknown| {
            why = unknown;
            Vec::new()
        });
        for address in addresses {
            match knock(address, member.secret.as_ref(), deadline) {
                Ok(channel) => return Ok(channel),
                Err(Refusal::Stranger) => {
                    let text = format!(
                        "another program listens at {address}, where rank 0 should: choose another port"
                    );
                    return Err(StartError::Refused(text));
                }
                Err(refusal @ (Refusal::Secret | Refusal::Protocol(_))) => {
                    return Err(StartError::Refused(format!("{zero} does not fit this rank: {refusal}")));
                }
                Err(Refusal::Broken(broken)) => why = broken.to_string(),
            }
        }
        if Instant::now() + AGAIN >= deadline {
            let seconds = timeout.as_secs();
            return Err(StartError::Absent(format!("{zero} did not answer within {seconds} s: {why}")));
        }
        if notice.take_if(|notice| Instant::now() >= *notice).is_some() {
            let seconds = timeout.as_secs();
            terminal::say(&format!("plimsoll: waiting for {zero} {seconds} s at most: {why}"));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Connects to an address, and runs the handshake.
fn knock(address: SocketAddr, secret: Option<&Secret>, deadline: Instant) -> Result<Channel, Refusal> {
    let mut handshake = dial(address, deadline)?;
    let until = deadline.min(Instant::now() + HANDSHAKE);
    while !handshake.poll(secret)? {
        if Instant::now() >= until {
            let late = "what listens there does not answer as Plimsoll does";
            return Err(broken(std::io::Error::other(late)));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(handshake.into_channel())
}

fn dial(address: SocketAddr, deadline: Instant) -> Result<Handshake, Refusal> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A timeout of zero would be an error.
    let attempt = ATTEMPT.min(left).max(Duration::from_millis(1));
    let stream = TcpStream::connect_timeout(&address, attempt).map_err(broken)?;
    Handshake::begin(stream, Role::Connects).map_err(broken)
}

fn broken(error: std::io::Error) -> Refusal {
    Refusal::Broken(Broken::Io(error))
}

/// Waits for rank 0's next message.
///
/// # Errors
/// Rank 0 refuses the job, has ended, or is silent until the deadline.
fn answer(member: &Member, zero: &mut Channel, deadline: Instant) -> Result<Answer, StartError> {
    loop {
        if let Some(answer) = answered(member, zero)? {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(StartError::Absent("rank 0 answered, but did not start the job in time".to_owned()));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Returns rank 0's next message, if it has arrived.
fn answered(member: &Member, zero: &mut Channel) -> Result<Option<Answer>, StartError> {
    match zero.parcel(answer_bytes(member.world_size)) {
        Ok(None) => Ok(None),
        Ok(Some(parcel)) => {
            let answer = Answer::decode(&parcel).ok_or_else(out_of_turn)?;
            answer.refusal().map_or(Ok(Some(answer)), Err)
        }
        Err(broken) => {
            Err(StartError::Absent(format!("rank 0 ended before all ranks had started: {broken}")))
        }
    }
}

/// The connections of this rank with all others but rank 0. Each rank connects to the ranks of lower number.
struct Mesh {
    own: Hello,
    hosts: Vec<String>,
    channels: Vec<Option<Channel>>,
    calls: Vec<Call>,
}

/// A pending connection to a rank of lower number.
struct Call {
    rank: usize,
    address: SocketAddr,
    handshake: Option<(Handshake, Instant)>,
    again: Instant,
    why: String,
}

impl Mesh {
    fn new(member: &Member, seats: &[Seat], zero: &Channel, own: Hello) -> Self {
        let host = zero.peer().unwrap_or(IpAddr::from([127, 0, 0, 1]));
        let call = |(rank, seat): (usize, &Seat)| Call {
            rank,
            address: SocketAddr::new(seat.address.unwrap_or(host), seat.port),
            handshake: None,
            again: Instant::now(),
            why: String::new(),
        };
        Mesh {
            own,
            hosts: seats.iter().map(|seat| seat.host.clone()).collect(),
            channels: seats.iter().map(|_| None).collect(),
            calls: seats.iter().enumerate().take(member.rank).skip(1).map(call).collect(),
        }
    }

    fn connect(
        &mut self,
        member: &Member,
        door: &mut Door,
        zero: &mut Channel,
        timeout: Duration,
    ) -> Result<(), StartError> {
        let deadline = Instant::now() + timeout;
        while let Some(missing) = self.missing() {
            self.accept(door);
            self.call(member.secret.as_ref(), deadline);
            if answered(member, zero)?.is_some() {
                return Err(out_of_turn());
            }
            if Instant::now() >= deadline {
                return Err(self.late(missing, door, timeout));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn missing(&self) -> Option<usize> {
        (1..self.channels.len()).find(|rank| *rank != self.own.rank && self.channels[*rank].is_none())
    }

    /// Accepts connections of ranks of higher number.
    fn accept(&mut self, door: &mut Door) {
        for arrival in door.arrivals() {
            let hello = &arrival.hello;
            let awaited = hello.rank > self.own.rank && hello.session == self.own.session;
            // A rank of another job, or a duplicate, which rank 0 has refused.
            if let Some(channel) = self.channels.get_mut(hello.rank).filter(|_| awaited)
                && channel.is_none()
            {
                *channel = Some(arrival.channel);
            }
        }
    }

    /// Advances the connections to ranks of lower number.
    fn call(&mut self, secret: Option<&Secret>, deadline: Instant) {
        for mut call in std::mem::take(&mut self.calls) {
            match call.advance(secret, deadline) {
                Ok(Some(mut channel)) => {
                    channel.send_parcel(&self.own.encode());
                    self.channels[call.rank] = Some(channel);
                    continue;
                }
                Ok(None) => {}
                Err(refusal) => {
                    (call.why, call.again) = (refusal.to_string(), Instant::now() + AGAIN);
                }
            }
            self.calls.push(call);
        }
    }

    fn late(&self, missing: usize, door: &Door, timeout: Duration) -> StartError {
        let own = self.own.named();
        let other = format!("rank {missing} on {}", self.hosts[missing]);
        let seconds = timeout.as_secs();
        let text = match self.calls.iter().find(|call| call.rank == missing) {
            Some(Call { address, why, .. }) => {
                format!("{own} could not connect to {other} at {address} within {seconds} s: {why}")
            }
            None => {
                let why = door.refused().map_or(String::new(), |refused| format!("; {refused}"));
                format!("{other} did not connect to {own} within {seconds} s{why}")
            }
        };
        StartError::Absent(text)
    }
}

impl Call {
    /// Advances the connection without blocking, except while connecting.
    ///
    /// # Errors
    /// The attempt failed.
    fn advance(&mut self, secret: Option<&Secret>, deadline: Instant) -> Result<Option<Channel>, Refusal> {
        let now = Instant::now();
        let (mut handshake, until) = match self.handshake.take() {
            Some(begun) => begun,
            None if now < self.again => return Ok(None),
            None => (dial(self.address, deadline)?, now + HANDSHAKE),
        };
        if handshake.poll(secret)? {
            return Ok(Some(handshake.into_channel()));
        }
        if now >= until {
            return Err(broken(std::io::Error::other("it does not answer")));
        }
        self.handshake = Some((handshake, until));
        Ok(None)
    }
}
