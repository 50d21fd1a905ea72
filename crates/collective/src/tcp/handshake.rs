//! Mutual proof that both ends of a connection know the job's secret, before anything else is read.
//!
//! Each end sends a greeting with a nonce, then an HMAC-SHA-256 over both greetings and its role, so that a
//! proof cannot be replayed or reflected. Both have a fixed length. An end reads on only if the other's proof
//! is right. Without a secret the key is empty, and the proof shows only that the other end is Plimsoll.
//!
//! Noise with a pre-shared key would not replace this. The plain-text greeting identifies strangers and other
//! versions, and a pattern of two messages proves freshness of only one end. Its encryption would be unused,
//! because gradients travel in plain text.

use std::fmt;
use std::net::TcpStream;
use std::os::fd::RawFd;

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

use crate::tcp::channel::{Broken, Channel};

const MAGIC: &[u8; 8] = b"plimsoll";
/// Version of the messages between ranks; raised with every change to them.
const PROTOCOL: u32 = 1;
const NONCE_BYTES: usize = 32;
const GREETING_BYTES: usize = MAGIC.len() + size_of::<u32>() + NONCE_BYTES;
const PROOF_BYTES: usize = 32;

/// Minimum bytes of a secret. Short secrets could be guessed from a recorded connection.
const LEAST_SECRET_BYTES: usize = 16;

/// The job's secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret. The error describes that it is too short.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < LEAST_SECRET_BYTES {
            let have = bytes.len();
            return Err(format!("it has {have} bytes, and at least {LEAST_SECRET_BYTES} are needed"));
        }
        Ok(Secret(bytes.to_owned()))
    }

    /// Returns random bytes for a secret.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn random_bytes() -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; NONCE_BYTES];
        random(&mut bytes)?;
        Ok(bytes)
    }
}

impl fmt::Debug for Secret {
    /// Formats no part of the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The reason for refusing a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("it is not Plimsoll")]
    Stranger,
    #[error("it speaks version {0} of the protocol, and this rank version {PROTOCOL}")]
    Protocol(u32),
    #[error("it has another PLIMSOLL_SECRET")]
    Secret,
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Role of an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Connects,
    Listens,
}

/// A connection whose ends have not yet proven the secret.
#[derive(Debug)]
pub(super) struct Handshake {
    channel: Channel,
    role: Role,
    own: [u8; GREETING_BYTES],
    theirs: Option<[u8; GREETING_BYTES]>,
}

impl Handshake {
    /// Starts the handshake by sending a greeting.
    pub(super) fn begin(stream: TcpStream, role: Role) -> std::io::Result<Self> {
        let mut own = [0; GREETING_BYTES];
        own[..8].copy_from_slice(MAGIC);
        own[8..12].copy_from_slice(&PROTOCOL.to_le_bytes());
        random(&mut own[12..])?;
        let mut channel = Channel::new(stream)?;
        channel.send(&own);
        Ok(Handshake { channel, role, own, theirs: None })
    }

    /// Advances the handshake without blocking; returns whether the other end has proven the secret.
    pub(super) fn poll(&mut self, secret: Option<&Secret>) -> Result<bool, Refusal> {
        let theirs = match self.theirs {
            Some(theirs) => theirs,
            None => {
                let Some(theirs) = self.greeting()? else { return Ok(false) };
                let proof = self.proof(secret, self.role, &theirs).map(|mac| mac.finalize().into_bytes());
                self.channel.send(&proof.ok_or(Refusal::Secret)?);
                *self.theirs.insert(theirs)
            }
        };
        let Some(proof) = self.channel.take(PROOF_BYTES)? else { return Ok(false) };
        let other = if self.role == Role::Connects { Role::Listens } else { Role::Connects };
        let expected = self.proof(secret, other, &theirs).ok_or(Refusal::Secret)?;
        // The comparison takes the same time for every proof.
        expected.verify_slice(&proof).map_err(|_| Refusal::Secret).map(|()| true)
    }

    /// Returns whether the other end's greeting has arrived.
    pub(super) fn has_greeted(&self) -> bool {
        self.theirs.is_some()
    }

    /// The file descriptor of the connection.
    pub(super) fn descriptor(&self) -> RawFd {
        self.channel.descriptor()
    }

    /// Returns the connection after a successful handshake.
    pub(super) fn into_channel(self) -> Channel {
        self.channel
    }

    fn greeting(&mut self) -> Result<Option<[u8; GREETING_BYTES]>, Refusal> {
        let taken = self.channel.take(GREETING_BYTES);
        let arrived = match &taken {
            Ok(Some(greeting)) => greeting,
            _ => self.channel.arrived(),
        };
        // A wrong greeting is recognised by its first bytes, because the others may never come.
        if !MAGIC.iter().zip(arrived).all(|(magic, byte)| magic == byte) {
            return Err(Refusal::Stranger);
        }
        let Some(greeting) = taken?.and_then(|bytes| <[u8; GREETING_BYTES]>::try_from(bytes).ok()) else {
            return Ok(None);
        };
        let protocol = greeting[8..12].try_into().map_or(0, u32::from_le_bytes);
        if protocol == PROTOCOL { Ok(Some(greeting)) } else { Err(Refusal::Protocol(protocol)) }
    }

    /// Returns the HMAC that the end in `role` must send. Never `None`, because keys of every length are
    /// allowed.
    fn proof(
        &self,
        secret: Option<&Secret>,
        role: Role,
        theirs: &[u8; GREETING_BYTES],
    ) -> Option<Hmac<Sha256>> {
        let key = secret.map_or(&[][..], |secret| &secret.0);
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        let (connects, listens) =
            if self.role == Role::Connects { (&self.own, theirs) } else { (theirs, &self.own) };
        mac.update(if role == Role::Connects { b"connects" } else { b"listens " });
        mac.update(connects);
        mac.update(listens);
        Some(mac)
    }
}

/// Fills `bytes` with random bytes from the system.
pub(super) fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let filled = getrandom(&mut *bytes, GetRandomFlags::empty())?;
    if filled == bytes.len() { Ok(()) } else { Err(std::io::Error::other("too few random bytes")) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connects = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (connects, listener.accept().unwrap().0)
    }

    /// Polls both ends until each has a result.
    fn meet(secrets: [Option<&Secret>; 2]) -> [Result<bool, Refusal>; 2] {
        let (connects, listens) = connected();
        let mut ends = [
            Handshake::begin(connects, Role::Connects).unwrap(),
            Handshake::begin(listens, Role::Listens).unwrap(),
        ];
        let mut results = [Ok(false), Ok(false)];
        while results.iter().any(|result| matches!(result, Ok(false))) {
            for (index, end) in ends.iter_mut().enumerate() {
                if matches!(results[index], Ok(false)) {
                    results[index] = end.poll(secrets[index]);
                }
            }
        }
        results
    }

    #[test]
    fn both_ends_prove_that_they_know_the_secret() {
        let secret = |text: &str| Secret::new(text.as_bytes()).unwrap();
        let one = secret("0123456789abcdef");
        let other = secret("0123456789abcdeF");
        for (secrets, same) in [
            ([None, None], true),
            ([Some(&one), Some(&one)], true),
            ([Some(&one), Some(&other)], false),
            ([Some(&one), None], false),
            ([None, Some(&one)], false),
        ] {
            for result in meet(secrets) {
                match result {
                    Ok(is_done) => assert!(is_done && same, "{secrets:?}"),
                    Err(refusal) => {
                        assert!(
                            !same && refusal.to_string().contains("another PLIMSOLL_SECRET"),
                            "{refusal}"
                        );
                    }
                }
            }
        }
        assert!(Secret::new(b"short").unwrap_err().contains("at least 16"));
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn a_proof_cannot_be_sent_back() {
        let (connects, echo) = connected();
        let mut end = Handshake::begin(connects, Role::Connects).unwrap();
        let mut copy = Channel::new(echo).unwrap();
        let mut result = Ok(false);
        let mut lengths = [GREETING_BYTES, PROOF_BYTES].into_iter().peekable();
        while matches!(result, Ok(false)) {
            if let Some(length) = lengths.peek()
                && let Some(bytes) = copy.take(*length).unwrap()
            {
                copy.send(&bytes);
                lengths.next();
            }
            result = end.poll(None);
        }
        assert!(matches!(result, Err(Refusal::Secret)), "{result:?}");
    }

    #[test]
    fn strangers_and_other_protocols_are_named() {
        for (bytes, words) in [
            (&b"SSH-2.0"[..], "not Plimsoll"),
            (b"plimsoll\x07\0\0\0", "version 7 of the protocol"),
            (b"plimsoll", "closed"),
            (b"", "closed"),
        ] {
            let (connects, other) = connected();
            let mut end = Handshake::begin(connects, Role::Connects).unwrap();
            let mut other = Channel::new(other).unwrap();
            let mut sent = bytes.to_vec();
            if bytes.len() == 12 {
                sent.resize(GREETING_BYTES, 0);
            }
            other.send(&sent);
            let own = other.take(GREETING_BYTES);
            if words == "closed" {
                assert!(own.is_ok());
                // The peer has read everything, so the connection closes cleanly.
                drop(other);
            }
            let refusal = loop {
                match end.poll(None) {
                    Ok(proven) => assert!(!proven),
                    Err(refusal) => break refusal,
                }
            };
            let is_closed = matches!(refusal, Refusal::Broken(_)) && words == "closed";
            assert!(is_closed || refusal.to_string().contains(words), "{refusal}");
        }
    }
}
