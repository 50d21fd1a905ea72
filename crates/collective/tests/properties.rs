//! The order of sums, for any values and world size.

use crate::common::{Number, Outcome, STREAM, cpu, filled, tree_sum};
use collective::Collective;
use collective::threads::{Options, run};
use half::{bf16, f16};
use proptest::prelude::*;

fn check<T: Number>(ranks: Vec<Vec<f32>>) -> Result<(), TestCaseError> {
    let inputs: Vec<Vec<T>> = ranks.iter().map(|row| row.iter().map(|v| T::rounded(*v)).collect()).collect();
    let world_size = inputs.len();
    let count = inputs[0].len();
    let inputs_of_ranks = inputs.clone();
    let outcome = run(world_size, Options::default(), move |c| -> Outcome<Vec<T>> {
        let device = cpu(c.rank());
        let buffer = filled(&device, &inputs_of_ranks[c.rank()]);
        c.group.run(
            Collective::AllReduce { region: buffer.region(0, buffer.bytes()), dtype: T::DTYPE },
            STREAM,
        )?;
        let sums = buffer.read::<T>(0, count)?.to_vec();
        Ok(sums)
    });
    let expected: Vec<T> = (0..count).map(|index| tree_sum(0, world_size, &|r| inputs[r][index])).collect();
    for sums in outcome.map_err(|error| TestCaseError::fail(error.to_string()))? {
        prop_assert_eq!(bytemuck::cast_slice::<T, u8>(&sums), bytemuck::cast_slice::<T, u8>(&expected));
    }
    Ok(())
}

fn values() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1usize..=9, 0usize..40).prop_flat_map(|(ranks, count)| {
        // Values differ widely in magnitude, so that any other order of additions rounds differently.
        let value = (-8i32..8, -1.0f32..1.0).prop_map(|(exponent, mantissa)| mantissa * 2f32.powi(exponent));
        proptest::collection::vec(proptest::collection::vec(value, count), ranks)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn sums_follow_the_tree(ranks in values()) {
        check::<f32>(ranks.clone())?;
        check::<bf16>(ranks.clone())?;
        check::<f16>(ranks)?;
    }
}
