use proptest::prelude::*;

use super::*;

fn holds(expression: &str, host: &str, port: Option<u16>) -> bool {
    IpExpr::parse(expression).expect(expression).matches(host, port)
}

#[test]
fn expressions() {
    for (expression, host, port, expected) in [
        ("192.168.1.*:90", "192.168.1.63", 90, true),
        ("192.168.1.*:90", "192.168.1.63", 80, false),
        ("192.168.1.*", "192.168.1.63", 80, true),
        ("192.168.1.*", "192.168.2.63", 80, false),
        ("192.168.1.1-63:90", "192.168.1.1", 90, true),
        ("192.168.1.1-63:90", "192.168.1.63", 90, true),
        ("192.168.1.1-63:90", "192.168.1.64", 90, false),
        ("192.168.1.1-63:90", "192.168.1.0", 90, false),
        ("192.168.1.1-63", "192.168.1.5", 1, true),
        ("192.168.1.7:20880", "192.168.1.7", 20880, true),
        ("192.168.1.192/26", "192.168.1.199", 90, true),
        ("192.168.1.192/26", "192.168.1.100", 90, false),
        ("192.168.1.0/24:90", "192.168.1.100", 91, true),
        ("0.0.0.0/0", "8.8.8.8", 1, true),
        ("0.0.0.0/0", "::1", 1, false),
        ("8.8.8.8/32", "8.8.8.8", 1, true),
        ("8.8.8.8/32", "8.8.8.9", 1, false),
        ("0.0.0.0:90", "8.8.8.8", 90, true),
        ("0.0.0.0:90", "some-name", 90, true),
        ("0.0.0.0:90", "8.8.8.8", 91, false),
        ("0.0.0.0", "8.8.8.8", 91, false),
        ("*", "8.8.8.8", 91, true),
        ("*.*.*.*", "::1", 91, true),
        ("*:90", "::1", 91, false),
        ("234e:0:4567:0:0:0:3d:*", "234e:0:4567::3d:ff", 90, true),
        ("234e:0:4567:0:0:0:3d:*", "234e:0:4567::3c:ff", 90, false),
        ("[234e:0:4567:0:0:0:3d:*]:90", "234e:0:4567::3d:ff", 91, false),
        ("234e:0:4567:0:0:0:3d:1-ee", "234e:0:4567::3d:ee", 90, true),
        ("234e:0:4567:0:0:0:3d:1-ee", "234e:0:4567::3d:ef", 90, false),
        ("234e:0:4567::3d:ff", "[234e:0:4567:0:0:0:3d:ff]", 90, true),
        ("[234e:0:4567::3d:ff]:90", "234e:0:4567:0000::3d:ff", 90, true),
        ("234e:0:4567::/40", "234e:0:45ff::1", 90, true),
        ("234e:0:4567::/40", "234e:0:5500::1", 90, false),
        ("::/0", "::1", 1, true),
        ("10.1.2.3", "::ffff:10.1.2.3", 1, true),
        ("::ffff:10.1.2.3", "10.1.2.3", 1, true),
        ("192.168.1.*", "no-address", 90, false),
        ("192.168.1.*", "192.168.1", 90, false),
        ("192.168.1.*", "192.168.1.256", 90, false),
        ("192.168.1.*", "", 90, false),
        ("192.168.1.0/24", "192.168.1.1.1", 90, false),
    ] {
        assert_eq!(holds(expression, host, Some(port)), expected, "{expression} {host} {port}");
    }
    assert!(!holds("10.0.0.1:90", "10.0.0.1", None));
    assert!(holds("10.0.0.1", "10.0.0.1", None));
}

#[test]
fn what_is_no_expression() {
    for text in [
        "",
        "shop",
        "shop:90",
        "1.2.3",
        "1.2.3.4.5",
        "1.2.3.256",
        "1.2.3.4:65536",
        "1.2.3.4:",
        "1.2.3.04",
        "1.2.3.9-3",
        "1.2.3.-",
        "1.2.3.1-",
        "1.2.3.4/33",
        "1.2.3.*/24",
        "1.2.3.4/",
        "::1/129",
        "1:2:3:*",
        "1:2::*",
        "g:0:0:0:0:0:0:*",
        "[::1",
        "[::1]90",
        "1.2.3.4/24:x",
        "1.2.3.+4",
        "* *",
    ] {
        let error = IpExpr::parse(text).expect_err(text);
        assert!(!error.message.is_empty() && !error.hint.is_empty());
    }
    assert!(IpExpr::parse(&"1".repeat(MAX_TEXT + 1)).is_err());
}

#[test]
fn addresses_are_split() {
    for (address, host, port) in [
        ("1.2.3.4", "1.2.3.4", None),
        ("1.2.3.4:5", "1.2.3.4", Some("5")),
        ("name:5", "name", Some("5")),
        ("::1", "::1", None),
        ("[::1]", "::1", None),
        ("[::1]:5", "::1", Some("5")),
        ("[::1]5", "[::1]5", None),
    ] {
        assert_eq!(split(address), (host, port));
    }
}

proptest! {
    /// Blocks and part-wise expressions against the definition by number.
    #[test]
    fn blocks_are_by_prefix(network: u32, bits in 0u32..=32, flip in 0u32..32, port: Option<u16>) {
        let expression = IpExpr::parse(&format!("{}/{bits}", Ipv4Addr::from(network))).expect("parses");
        let other = network ^ (1 << flip);
        let inside = flip < 32 - bits;
        prop_assert!(expression.matches_ip(Some(Ipv4Addr::from(network).into()), port));
        prop_assert_eq!(expression.matches_ip(Some(Ipv4Addr::from(other).into()), port), inside);
    }

    #[test]
    fn parts_are_ranges(octets: [u8; 4], at in 0usize..4, from: u8, to: u8, wanted: u16, port: u16) {
        prop_assume!(from <= to);
        let parts: Vec<String> = (0..4)
            .map(|i| if i == at { format!("{from}-{to}") } else { octets[i].to_string() })
            .collect();
        let expression = IpExpr::parse(&format!("{}:{wanted}", parts.join("."))).expect("parses");
        prop_assume!(!expression.is_any_host());
        let host = Ipv4Addr::from(octets).to_string();
        let expected = (from..=to).contains(&octets[at]) && port == wanted;
        prop_assert_eq!(expression.matches(&host, Some(port)), expected);
    }

    #[test]
    fn every_address_is_itself(ip: u128, v4: u32, port: u16) {
        let v6 = Ipv6Addr::from(ip);
        prop_assert!(holds(&v6.to_string(), &v6.to_string(), Some(port)));
        let with_port = format!("[{v6}]:{port}");
        prop_assert!(holds(&with_port, &v6.to_string(), Some(port)));
        let v4 = Ipv4Addr::from(v4);
        let with_port = format!("{v4}:{port}");
        prop_assert!(holds(&with_port, &v4.to_string(), Some(port)));
    }

    /// A set is its members, one or another.
    #[test]
    fn sets_are_any_of_theirs(texts in prop::collection::vec(r"10\.0\.[0-2]\.([0-3]|\*|1-2)(:[89])?|::[1-3]|\[::1\]:8|10\.0\.0\.0/2[34]", 0..6), host in r"10\.0\.[0-2]\.[0-3]|::[1-3]|x", port in prop::option::of(7u16..10)) {
        let all: Vec<IpExpr> = texts.iter().map(|t| IpExpr::parse(t).expect("parses")).collect();
        let set: AddressSet = all.iter().cloned().collect();
        prop_assert_eq!(set.is_empty(), all.is_empty());
        let any = all.iter().any(|e| e.matches(&host, port));
        prop_assert_eq!(set.matches_ip(ip(&host), port), any);
    }

    #[test]
    fn any_text_is_read(text in r"[0-9a-f:.*/\[\]-]{0,40}|\PC{0,40}", host in r"[0-9a-f:.\[\]]{0,20}|\PC{0,20}", port: Option<u16>) {
        if let Ok(expression) = IpExpr::parse(&text) {
            expression.matches(&host, port);
        }
        split(&text);
        ip(&text);
    }
}
