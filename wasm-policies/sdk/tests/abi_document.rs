//! `docs/abi.md` and the codecs say the same.

use std::{collections::BTreeMap, path::Path};

use rulecast_policy::{
    CommitError,
    abi::{Packed, Status},
    answer, endpoints,
    outcome::{Did, OutcomeWriter, RuleOutcome, tag},
    request::{self, Frame, RuleRef, SHADOW},
};

fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut buffer = [0u8; 512];
    let rules =
        [RuleRef { id: 7, position: 0, flags: 0 }, RuleRef { id: 9, position: 1, flags: SHADOW }];
    let values = [(0, Some(b"getOrder".as_slice())), (3, None)];
    let frame = Frame {
        set: 5,
        draw: 0x0123_4567_89ab_cdef,
        endpoints: 3,
        candidates: &[0b111],
        rules: &rules.map(RuleRef::encode),
    };
    let len = request::write(&mut buffer, frame, values.into_iter());
    all.insert("request", buffer[..len.expect("fits")].to_vec());

    let mut writer = OutcomeWriter::new(&mut buffer, 2);
    writer.rule(0, RuleOutcome { did: Did::Applied, remaining: 2 });
    writer.rule(1, RuleOutcome { did: Did::Skipped, remaining: 2 });
    writer.endpoints(&[0b101]);
    writer.effect(tag::TEXT, 0, b"why");
    let len = writer.finish().expect("fits");
    all.insert("outcome", buffer[..len].to_vec());

    let attributes = [(0, "method"), (3, "consumer[region]"), (u16::MAX, "draw")];
    let len = answer::write_accepted(&mut buffer, attributes.into_iter()).expect("fits");
    all.insert("accepted", buffer[..len].to_vec());
    let error = CommitError::new("RC0201", "conditions[0]", "no");
    let len = answer::write_refused(&mut buffer, &error).expect("fits");
    all.insert("refused", buffer[..len].to_vec());

    let set: [&[(&str, &[u8])]; 3] = [
        &[("port", b"1"), ("region", b"hz")],
        &[("port", b"2"), ("region", b"bj")],
        &[("port", b"3"), ("region", b"hz")],
    ];
    all.insert("endpoints", endpoints::write(set.iter().map(|e| e.iter().copied())));

    let packed = Packed { status: Status::Refused, offset: 72, len: 44 };
    all.insert("packed", (packed.pack() as u64).to_be_bytes().to_vec());
    all
}

#[test]
fn the_document_has_these_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/abi.md");
    let text = std::fs::read_to_string(path).expect("the document is there");
    for (name, bytes) in vectors() {
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let block = text
            .split_once(&format!("```hex {name}\n"))
            .and_then(|(_, rest)| rest.split_once("```"))
            .map(|(block, _)| block)
            .unwrap_or_default();
        let written: String = block.chars().filter(|c| !c.is_whitespace()).collect();
        assert_eq!(written, hex, "{name}");
    }
}
