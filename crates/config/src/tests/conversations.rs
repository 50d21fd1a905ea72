//! Tests of the keys of conversations: packing, trained tokens, held-out records.

use super::*;

/// `data.train_on` accepts names and lists of roles in any order, and the resolved configuration shows them
/// in one form.
#[test]
fn roles_are_read_in_any_order() {
    let text = "[data]\nkind = \"chat\"\npaths = [\"a\"]\n";
    for (set, shown) in [
        (None, "\"answers\""),
        (Some("data.train_on=answers"), "\"answers\""),
        (Some("data.train_on=\"all\""), "\"all\""),
        (Some("data.train_on=['tool', 'assistant', 'tool']"), "[\"assistant\", \"tool\"]"),
    ] {
        let sets: Vec<&str> = set.into_iter().collect();
        let config = parse(text, &sets).unwrap();
        assert_eq!(config.data.train_on.to_string(), shown);
        assert!(config.to_toml().contains(&format!("train_on = {shown}\n")), "{shown}");
    }
}

#[test]
fn conversations_without_a_held_out_part_have_no_validation() {
    let text = "[data]\nkind = \"chat\"\npaths = [\"a\"]\n";
    for (sets, count) in [
        (&[][..], 8),
        (&["data.validation_fraction=0"][..], 0),
        (&["data.validation_fraction=0", "data.validation_paths=['b']"], 8),
    ] {
        let config = parse(text, sets).unwrap();
        assert_eq!((config.validates(), config.validation_micro_batches()), (count > 0, count), "{sets:?}");
    }
}

#[test]
fn conversations_are_packed_with_masks() {
    let text = "[data]\nkind = \"chat\"\npaths = [\"a.jsonl\"]\n";
    for (sets, packs, masks) in [
        (&[][..], true, true),
        (&["data.pack_documents=false"], false, false),
        (&["data.document_mask=false"], true, false),
        (&["data.pack_documents=false", "data.document_mask=true"], false, true),
    ] {
        let data = parse(text, sets).unwrap().data;
        assert_eq!((data.pack_documents, data.document_mask), (packs, masks), "{sets:?}");
    }
    let other = parse(LEAST, &[]).unwrap().data;
    assert!(!other.pack_documents && !other.document_mask);
}
