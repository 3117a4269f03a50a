//! The rules in `examples/rules` are valid, and each file holds what its name says.

use std::path::Path;

use rulecast_api::{
    kind::KINDS,
    manifest::{self, Format},
};

#[test]
fn every_example_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rules");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let bytes = std::fs::read(&path).expect("it can be read");
        let manifest = manifest::parse(KINDS, &bytes, Format::of(name).expect("a rule file"));
        let problems: Vec<_> = manifest.problems().collect();
        assert!(problems.is_empty(), "{name}: {problems:?}");
        for document in manifest.documents {
            let resource = document.outcome.expect("no problems");
            assert_eq!(name, format!("{}.yaml", resource.id.name));
            count += 1;
        }
    }
    assert!(count > 0, "no example in {}", folder.display());
}
