//! The table of all keys, in sections and in model families.

use keys::{Default, Key, Only, Section, Table, Takes};
use nn::Families;

use crate::foreign::FOREIGN;
use crate::sections::{
    Checkpoint, Data, LoraSection, Memory, ModelSection, Optim, Parallel, Precision, Preference, Scaler,
    Telemetry, Train,
};

/// Builds the table of all keys, section by section.
pub(crate) fn table(families: &'static Families) -> Table {
    let of_tokens = Only { key: ModelSection::kind, is: families.names_of_tokens(), or_in: None };
    // `model.kind` takes the names of the families.
    let mut keys: Vec<Key> = section_keys::<ModelSection>()
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
        let only = Some(Only { key: ModelSection::kind, is: std::slice::from_ref(name), or_in: None });
        keys.extend(family.keys().into_iter().map(|key| Key { only, decides_times: true, ..key.clone() }));
    }
    keys.extend(section_keys::<Data>().map(|key| match key.path {
        Data::tokenizer => Key { only: Some(of_tokens), ..key },
        _ => key,
    }));
    keys.extend(section_keys::<Preference>());
    keys.extend(section_keys::<Train>().chain(section_keys::<LoraSection>()).chain(section_keys::<Optim>()));
    keys.extend(
        section_keys::<Parallel>().chain(section_keys::<Precision>()).chain(section_keys::<Scaler>()),
    );
    keys.extend(
        section_keys::<Memory>().chain(section_keys::<Telemetry>()).chain(section_keys::<Checkpoint>()),
    );
    Table::new(keys).with_foreign(FOREIGN)
}

fn section_keys<S: Section>() -> impl Iterator<Item = Key> {
    S::keys().into_iter().cloned()
}
