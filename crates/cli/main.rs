//! The `plimsoll` program.

use nn::Family;

fn main() {
    const NONE_OF_ITS_OWN: [Box<dyn Family>; 0] = [];
    plimsoll::main(NONE_OF_ITS_OWN);
}
