//! One authorization problem for all engines: 100 rules over ten attributes, and calls.

use serde_json::{Value, json};

/// What a call is described by. Every rule looks at all of them, in this order.
pub(crate) const ATTRIBUTES: [&str; 10] = [
    "principal",
    "ns",
    "application",
    "method",
    "path",
    "port",
    "tenant",
    "channel",
    "tier",
    "region",
];

/// What a rule wants of an attribute.
pub(crate) enum Test {
    Is(String),
    OneOf([&'static str; 2]),
    Begins(String),
    IsNot(&'static str),
}

impl Test {
    fn holds(&self, value: &str) -> bool {
        match self {
            Self::Is(text) => value == text,
            Self::OneOf(texts) => texts.contains(&value),
            Self::Begins(text) => value.starts_with(text.as_str()),
            Self::IsNot(text) => value != *text,
        }
    }
}

/// A call is allowed when all tests of one rule hold.
pub(crate) type Rule = [Test; ATTRIBUTES.len()];

/// A call: a value for each of [`ATTRIBUTES`].
pub(crate) type Values = [String; ATTRIBUTES.len()];

/// See the module.
pub(crate) struct Problem {
    pub(crate) rules: Vec<Rule>,
    pub(crate) calls: Vec<Values>,
}

impl Problem {
    /// Four rules for each caller, apart by path and tenant. Of eight calls one has a last
    /// attribute that fits no rule, and one comes from a stranger.
    pub(crate) fn new(rules: usize) -> Self {
        let calls = (0..64).map(|n| {
            let mut call = call(n * 37 % rules);
            match n % 8 {
                6 => call[9] = "us".into(),
                7 => call[0] = "cluster.local/ns/team9/app/stranger".into(),
                _ => {}
            }
            call
        });
        Self { rules: (0..rules).map(rule).collect(), calls: calls.collect() }
    }

    /// Decides by hand.
    pub(crate) fn allows(&self, call: &Values) -> bool {
        let holds = |rule: &Rule| rule.iter().zip(call).all(|(test, value)| test.holds(value));
        self.rules.iter().any(holds)
    }

    /// The rules as AuthorizationPolicies.
    pub(crate) fn policies(&self) -> Vec<Value> {
        self.rules.iter().map(policy).collect()
    }
}

fn caller(n: usize) -> (String, String, String) {
    let (namespace, application) = (format!("team{}", n % 5), format!("app{}", n % 25));
    (format!("cluster.local/ns/{namespace}/app/{application}"), namespace, application)
}

fn rule(n: usize) -> Rule {
    let (principal, namespace, application) = caller(n);
    [
        Test::Is(principal),
        Test::Is(namespace),
        Test::Is(application),
        Test::Is(if n % 3 == 0 { "GET" } else { "POST" }.into()),
        Test::Begins(format!("/shop.v1.Orders/op{n}/")),
        Test::Is("8443".into()),
        Test::Is(format!("tenant{}", n / 25)),
        Test::OneOf(["web", "mobile"]),
        Test::IsNot("trial"),
        Test::Is("eu".into()),
    ]
}

/// One that rule `n` allows.
fn call(n: usize) -> Values {
    let (principal, namespace, application) = caller(n);
    [
        principal,
        namespace,
        application,
        if n % 3 == 0 { "GET" } else { "POST" }.into(),
        format!("/shop.v1.Orders/op{n}/7"),
        "8443".into(),
        format!("tenant{}", n / 25),
        "mobile".into(),
        "gold".into(),
        "eu".into(),
    ]
}

fn policy(rule: &Rule) -> Value {
    const KEYS: [&str; ATTRIBUTES.len()] = [
        "",
        "",
        "source.application",
        "method",
        "path",
        "destination.port",
        "request.headers[x-tenant]",
        "request.headers[x-channel]",
        "extension[tier]",
        "extension[region]",
    ];
    let text = |test: &Test| match test {
        Test::Is(text) => text.clone(),
        _ => unreachable!("callers are given in full"),
    };
    let equals = |text: &str| json!({"type": "equals", "value": text});
    let when = rule.iter().zip(KEYS).skip(2).map(|(test, key)| match test {
        Test::Is(text) => json!({"key": key, "values": [equals(text)]}),
        Test::OneOf(texts) => json!({"key": key, "values": texts.map(equals)}),
        Test::Begins(text) => {
            let regex = format!("{}.*", text.replace('.', r"\."));
            json!({"key": key, "values": [{"type": "regex", "value": regex}]})
        }
        Test::IsNot(text) => json!({"key": key, "notValues": [equals(text)]}),
    });
    let from = json!({"principals": [text(&rule[0])], "namespaces": [text(&rule[1])]});
    json!({"action": "ALLOW", "rules": [{"from": from, "when": when.collect::<Vec<_>>()}]})
}
