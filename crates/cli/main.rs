//! The `plimsoll` program.

fn main() {
    plimsoll::main([]);
}
