//! Writes the reference of all configuration keys to standard output, as Markdown:
//! `cargo run -p plimsoll-config --example reference`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(config::reference().as_bytes())
}
