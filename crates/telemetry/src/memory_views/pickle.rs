//! Writes Python pickles of protocol 4, using only the opcodes that PyTorch's memory viewer reads.

use std::collections::HashMap;

/// Maximum number of items in a batch; the viewer passes them as arguments of one call.
const BATCH: usize = 1000;

const PROTO: u8 = 0x80;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const NEW_TRUE: u8 = 0x88;
const NEW_FALSE: u8 = 0x89;
const BIN_INT: u8 = b'J';
const BIN_INT_1: u8 = b'K';
const BIN_INT_2: u8 = b'M';
const LONG_1: u8 = 0x8a;
const BIN_FLOAT: u8 = b'G';
const SHORT_BIN_UNICODE: u8 = 0x8c;
const BIN_UNICODE: u8 = b'X';
const EMPTY_LIST: u8 = b']';
const APPENDS: u8 = b'e';
const EMPTY_DICT: u8 = b'}';
const SET_ITEMS: u8 = b'u';
const TUPLE_2: u8 = 0x86;
const MEMOIZE: u8 = 0x94;
const BIN_GET: u8 = b'h';
const LONG_BIN_GET: u8 = b'j';

/// A pickle under construction. A repeated string is written as a reference to its first occurrence.
pub(super) struct Pickle {
    bytes: Vec<u8>,
    texts: HashMap<String, u32>,
    memoized: u32,
}

/// A reference to an already written value.
#[derive(Clone, Copy)]
pub(super) struct Memo(u32);

impl Pickle {
    pub(super) fn new() -> Pickle {
        Pickle { bytes: vec![PROTO, 4], texts: HashMap::new(), memoized: 0 }
    }

    /// Returns the bytes of the pickle. Its value must have been written.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(STOP);
        self.bytes
    }

    /// Stores the latest value in the pickle's memo and returns a reference to it.
    pub(super) fn memoize(&mut self) -> Memo {
        self.bytes.push(MEMOIZE);
        self.memoized += 1;
        Memo(self.memoized - 1)
    }

    /// Writes a reference to an earlier value.
    pub(super) fn refer(&mut self, memo: Memo) {
        match u8::try_from(memo.0) {
            Ok(short) => self.bytes.extend([BIN_GET, short]),
            Err(_) => {
                self.bytes.push(LONG_BIN_GET);
                self.bytes.extend(memo.0.to_le_bytes());
            }
        }
    }

    pub(super) fn boolean(&mut self, value: bool) {
        self.bytes.push(if value { NEW_TRUE } else { NEW_FALSE });
    }

    pub(super) fn float(&mut self, value: f64) {
        self.bytes.push(BIN_FLOAT);
        self.bytes.extend(value.to_be_bytes());
    }

    pub(super) fn unsigned(&mut self, value: u64) {
        self.integer(i128::from(value));
    }

    pub(super) fn integer(&mut self, value: i128) {
        if let Ok(byte) = u8::try_from(value) {
            self.bytes.extend([BIN_INT_1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.bytes.push(BIN_INT_2);
            self.bytes.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.bytes.push(BIN_INT);
            self.bytes.extend(int.to_le_bytes());
        } else {
            // The fewest bytes that preserve the sign.
            let all = value.to_le_bytes();
            let sign = if value < 0 { 0xff } else { 0 };
            let mut length = all.len();
            while length > 1 && all[length - 1] == sign && (all[length - 2] ^ sign) < 0x80 {
                length -= 1;
            }
            self.bytes.extend([LONG_1, length as u8]);
            self.bytes.extend(&all[..length]);
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        if let Some(&index) = self.texts.get(text) {
            return self.refer(Memo(index));
        }
        match u8::try_from(text.len()) {
            Ok(length) => self.bytes.extend([SHORT_BIN_UNICODE, length]),
            Err(_) => {
                self.bytes.push(BIN_UNICODE);
                self.bytes.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.bytes.extend(text.as_bytes());
        let memo = self.memoize();
        self.texts.insert(text.to_owned(), memo.0);
    }

    /// Writes a list; `write` writes each item.
    pub(super) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Pickle, &T)) {
        self.bytes.push(EMPTY_LIST);
        for batch in items.chunks(BATCH) {
            self.bytes.push(MARK);
            batch.iter().for_each(|item| write(self, item));
            self.bytes.push(APPENDS);
        }
    }

    /// Writes a dictionary; `write` writes alternating keys and values, fewer than [`BATCH`] in total.
    pub(super) fn dictionary(&mut self, write: impl FnOnce(&mut Pickle)) {
        self.bytes.extend([EMPTY_DICT, MARK]);
        write(self);
        self.bytes.push(SET_ITEMS);
    }

    /// Writes two numbers as a tuple.
    pub(super) fn pair(&mut self, first: u64, second: u64) {
        self.unsigned(first);
        self.unsigned(second);
        self.bytes.push(TUPLE_2);
    }

    /// Writes a key; `write` writes its value.
    pub(super) fn entry(&mut self, key: &str, write: impl FnOnce(&mut Pickle)) {
        self.text(key);
        write(self);
    }
}
