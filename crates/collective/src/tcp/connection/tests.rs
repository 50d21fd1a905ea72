//! Frames between two ranks, and invalid bytes.

use std::net::TcpListener;

use super::*;
use crate::call::{Call, CallKind, Channel, Signature};

/// A connection of rank 0 to rank 1, and rank 1's stream.
fn connected() -> (Connection, TcpStream, mio::Poll) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let poll = mio::Poll::new().unwrap();
    (Connection::new(1, listener.accept().unwrap().0, poll.registry()).unwrap(), other, poll)
}

fn signature(sequence: u64) -> Signature {
    Signature::new(Call { channel: Channel::Data, kind: CallKind::Send, sequence })
}

fn message(sequence: u64, byte: u8, length: usize, pool: &mut PayloadPool) -> Message {
    let mut payload = pool.take(length);
    payload.bytes_mut().fill(byte);
    Message { signature: signature(sequence), payload }
}

fn frame(kind: u32, length: u32, header: &Header) -> Vec<u8> {
    let head = Head { length, ..Head::new(kind, Some(header), 0) };
    bytemuck::bytes_of(&head).to_vec()
}

/// Reads until `done`, or until the connection refuses or closes.
fn read(connection: &mut Connection, done: impl Fn(&Connection) -> bool) -> Result<(), String> {
    let mut scratch = [0; 1000];
    let mut pool = PayloadPool::default();
    let mut notices = VecDeque::new();
    while !done(connection) && connection.is_open() {
        connection.read(&mut scratch, &mut pool, &mut notices)?;
    }
    Ok(())
}

/// Messages of two groups arrive whole and in order. A group that is not polled delays only itself.
#[test]
fn groups_have_windows_of_their_own() {
    let (mut sender, stream, _poll) = connected();
    let other = mio::Poll::new().unwrap();
    let mut receiver = Connection::new(0, stream, other.registry()).unwrap();
    let mut pool = PayloadPool::default();
    for sequence in 0..WINDOW as u64 {
        assert!(sender.try_send(7, message(sequence, 7, 1000, &mut pool), &mut pool).is_none());
    }
    assert!(sender.try_send(7, message(9, 7, 1, &mut pool), &mut pool).is_some(), "the window is full");
    for sequence in 0..3 * WINDOW as u64 {
        let length = [0, 1, PAYLOAD_BYTES][sequence as usize % 3];
        let mut left = Some(message(sequence, sequence as u8, length, &mut pool));
        let taken = loop {
            left = left.and_then(|message| sender.try_send(8, message, &mut pool));
            sender.write(&mut pool);
            let mut scratch = [0; 5000];
            let mut notices = VecDeque::new();
            receiver.read(&mut scratch, &mut pool, &mut notices).unwrap();
            sender.read(&mut scratch, &mut pool, &mut notices).unwrap();
            if left.is_none()
                && let Some(taken) = receiver.take(8, &mut pool)
            {
                break taken;
            }
        };
        assert_eq!(taken.signature, signature(sequence));
        assert!(taken.payload.bytes().len() == length);
        assert!(taken.payload.bytes().iter().all(|byte| *byte == sequence as u8));
    }
    for sequence in 0..WINDOW as u64 {
        assert_eq!(receiver.take(7, &mut pool).unwrap().signature, signature(sequence));
    }
    assert!(receiver.take(7, &mut pool).is_none());
    drop(sender);
    read(&mut receiver, |_| false).unwrap();
    assert!(!receiver.is_open() && receiver.try_send(7, message(0, 0, 0, &mut pool), &mut pool).is_some());
}

#[test]
fn what_no_rank_sends_is_refused_before_memory_is_allocated() {
    let header = |payload| Header::new(7, &signature(0), payload);
    let invalid = bytemuck::cast([0xff_u8; HEADER_BYTES]);
    let long = PAYLOAD_BYTES as u32 + 1;
    let frames = [
        frame(0, 0, &header(0)),
        frame(9, 0, &header(0)),
        frame(MESSAGE, long, &header(long as usize)),
        frame(MESSAGE, u32::MAX, &header(u32::MAX as usize)),
        frame(MESSAGE, 4, &header(5)),
        frame(MESSAGE, 0, &invalid),
        frame(NOTICE, NOTICE_BYTES as u32 + 1, &header(0)),
        [frame(NOTICE, 2, &header(0)), vec![9, 9]].concat(),
        frame(TAKEN, 1, &header(0)),
        frame(TAKEN, 0, &header(0)),
        frame(MESSAGE, 0, &header(0)).repeat(WINDOW + 1),
    ];
    for (index, bytes) in frames.into_iter().enumerate() {
        let (mut connection, mut other, _poll) = connected();
        other.write_all(&bytes).unwrap();
        let refused = read(&mut connection, |_| false).unwrap_err();
        assert_eq!(refused, "rank 1 sent what is no message of a rank", "{index}");
        assert!(connection.incoming.body.is_none(), "{index}");
    }
}
