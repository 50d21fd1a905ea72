use tensor::ops::fill;

use crate::support::{LENGTHS, devices, read};

#[test]
fn every_element_is_the_constant() {
    for case in devices() {
        for length in LENGTHS {
            let (x, _) = case.operand("x", [length]);
            fill::constant(&x, -2.5).unwrap();
            assert_eq!(read(&x), vec![-2.5; length]);
        }
    }
}
