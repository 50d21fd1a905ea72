//! The table of all keys: the sections, and the keys of every family of models.

use keys::{Default, Key, Only, Section, Table, Takes};
use nn::Families;

use crate::foreign::FOREIGN;
use crate::sections::{
    Checkpoint, Data, LoraSection, Memory, ModelSection, Optim, Parallel, Precision, Preference, Scaler,
    Telemetry, Train,
};

/// All keys, section by section.
pub(crate) fn table(families: &'static Families) -> Table {
    let of_tokens = Only { key: ModelSection::kind, is: families.names_of_tokens() };
    // `model.kind` takes the names of the families.
    let mut keys: Vec<Key> = of::<ModelSection>()
        .map(|key| match key.path {
            ModelSection::kind => Key {
                takes: Takes::Choice(families.names()),
                default: Default::Literal(families.default_literal()),
                decides_times: true,
                ..key
            },
            ModelSection::resize_vocabulary => Key { only: Some(of_tokens), ..key },
            _ => key,
        })
        .collect();
    for (family, name) in families.list().iter().zip(families.names()) {
        let only = Some(Only { key: ModelSection::kind, is: std::slice::from_ref(name) });
        keys.extend(family.keys().into_iter().map(|key| Key { only, decides_times: true, ..key.clone() }));
    }
    keys.extend(of::<Data>().map(|key| match key.path {
        Data::tokenizer => Key { only: Some(of_tokens), ..key },
        _ => key,
    }));
    keys.extend(of::<Preference>());
    keys.extend(of::<Train>().chain(of::<LoraSection>()).chain(of::<Optim>()));
    keys.extend(of::<Parallel>().chain(of::<Precision>()).chain(of::<Scaler>()));
    keys.extend(of::<Memory>().chain(of::<Telemetry>()).chain(of::<Checkpoint>()));
    Table::new(keys).with_foreign(FOREIGN)
}

fn of<S: Section>() -> impl Iterator<Item = Key> {
    S::keys().into_iter().cloned()
}
