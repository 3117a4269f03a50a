//! The rules in `examples/` are valid, and each file holds what its name says.

use std::path::Path;

use rulecast_api::{
    kind::KINDS,
    manifest::{self, Format},
};

/// The count of rules in a folder of `examples/`.
fn read(folder: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if name == "README.md" {
            continue;
        }
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
    count
}

#[test]
fn every_example_is_valid() {
    assert!(read("rules") > 0);
    assert!(read("dubbo") > 0);
    assert!(read("rulecast") > 0);
}

#[test]
fn the_pages_of_examples_name_each() {
    for folder in ["dubbo", "rulecast"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(folder);
        let page = std::fs::read_to_string(folder.join("README.md")).expect("it can be read");
        for entry in std::fs::read_dir(&folder).expect("the folder is there") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            assert!(name == "README.md" || page.contains(&format!("({name})")), "{name}");
        }
    }
}
