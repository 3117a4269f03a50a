//! Random cases in the vector format, and making a failing one smaller.

use fastrand::Rng;
use serde_json::{Map, Value, json};

const HOSTS: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.1.1", "h1"];
const PORTS: &[i64] = &[7, 20880, 20881];
const REGIONS: &[&str] = &["beijing", "hangzhou", "hz", "京", "北京", "a*b", "$env"];
const ENVS: &[&str] = &["gray", "normal", "g", ""];
const NUMBERS: &[&str] =
    &["1", "5", "9", "10", "-3", "0", "80", "abc", "1.5", "007", HUGE, "-9223372036854775809"];
/// Beyond the integers of any machine.
const HUGE: &str = "1000000000000000000000000000000000000000000";
const METHODS: &[&str] = &["getFoo", "setFoo", "get", "说"];
const APPLICATIONS: &[&str] = &["shop", "cart", "my-app"];
const PARAMETERS: &[&str] = &["host", "port", "application", "region", "env", "n", "ключ", "区"];

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(..100) < percent
}

/// One case. Most are valid; about one in five has a rule that validation must refuse.
pub(crate) fn case(rng: &mut Rng) -> Value {
    let weighted = rng.bool();
    let providers: Vec<Value> = (0..pick(rng, &[0, 1, 2, 3, 3, 4, 5, 6]))
        .map(|_| Value::Object(parameters(rng, true)))
        .collect();
    let mut case = json!({
        "id": 0,
        "kind": if weighted { "condition-v3.1" } else { "condition-v3.0" },
        "src": "R",
        "consumer": parameters(rng, false),
        "invocation": invocation(rng),
        "providers": providers,
    });
    case["rule"] = Facts { case: &case }.rule(rng, weighted);
    case
}

/// What a rule is written about, so that its values often hit.
struct Facts<'a> {
    case: &'a Value,
}

fn parameters(rng: &mut Rng, provider: bool) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("host".to_owned(), pick(rng, HOSTS).into());
    if provider {
        map.insert("port".to_owned(), pick(rng, PORTS).into());
    }
    let mut put = |rng: &mut Rng, percent, key: &str, values: &[&str]| {
        if chance(rng, percent) {
            map.insert(key.to_owned(), pick(rng, values).into());
        }
    };
    put(rng, 70, "application", APPLICATIONS);
    put(rng, 70, "region", REGIONS);
    put(rng, 70, "env", ENVS);
    put(rng, 60, "n", NUMBERS);
    put(rng, 15, "ключ", REGIONS);
    put(rng, 15, "区", ENVS);
    // Never read: these keys mean the invocation.
    put(rng, 5, "method", METHODS);
    put(rng, 5, "arguments", NUMBERS);
    put(rng, 5, "attachments", NUMBERS);
    map
}

fn invocation(rng: &mut Rng) -> Value {
    let mut map = Map::new();
    if chance(rng, 85) {
        map.insert("method".to_owned(), pick(rng, METHODS).into());
    }
    if chance(rng, 80) {
        let args: Vec<Value> = (0..rng.usize(..4))
            .map(|_| match rng.u8(..4) {
                0 => json!(rng.i64(-3..12)),
                1 => json!(rng.bool()),
                2 => json!(pick(rng, ENVS)),
                _ => json!(pick(rng, NUMBERS)),
            })
            .collect();
        map.insert("args".to_owned(), args.into());
    }
    if chance(rng, 80) {
        let mut attachments = Map::new();
        for (key, values) in [("n", NUMBERS), ("env", ENVS), ("键", REGIONS), ("a.b", NUMBERS)] {
            if chance(rng, 60) {
                attachments.insert(key.to_owned(), pick(rng, values).into());
            }
        }
        map.insert("attachments".to_owned(), attachments.into());
    }
    map.into()
}

impl Facts<'_> {
    fn rule(&self, rng: &mut Rng, weighted: bool) -> Value {
        let mut rule = Map::new();
        let mut put = |rng: &mut Rng, percent, key: &str, values: &[Value]| {
            if chance(rng, percent) {
                rule.insert(key.to_owned(), values[rng.usize(..values.len())].clone());
            }
        };
        put(rng, 70, "force", &[json!(true), json!(false)]);
        put(rng, 4, "enabled", &[json!(true), json!(false)]);
        put(rng, 4, "priority", &[json!(0), json!(7), json!(-1)]);
        put(rng, 4, "runtime", &[json!(true), json!(false)]);
        put(rng, 4, "scope", &[json!("service"), json!("application")]);
        if chance(rng, 2) {
            let wrong = [
                ("forced", json!(true)),
                ("force", json!("yes")),
                ("conditons", json!([])),
                ("scope", json!("global")),
                ("configVersion", json!("v9")),
                ("conditions", json!("host=h1")),
                ("enabled", json!(1)),
            ];
            let (key, value) = wrong[rng.usize(..wrong.len())].clone();
            rule.insert(key.to_owned(), value);
        }
        let list: Vec<Value> = (0..pick(rng, &[0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3]))
            .map(|_| if weighted { self.object(rng) } else { self.string(rng).into() })
            .collect();
        let left_out = list.is_empty() && rng.bool();
        if !left_out && !rule.contains_key("conditions") {
            rule.insert("conditions".to_owned(), list.into());
        }
        rule.into()
    }

    fn string(&self, rng: &mut Rng) -> String {
        let space = |rng: &mut Rng| pick(rng, &["", " ", " ", "  ", "\t"]);
        let mut when = match rng.u8(..8) {
            0 => String::new(),
            1 => "true".to_owned(),
            _ => self.side(rng, false),
        };
        let mut then = match rng.u8(..16) {
            0 => String::new(),
            1 => "false".to_owned(),
            _ => self.side(rng, true),
        };
        if chance(rng, 2) {
            when = spoil(rng, &when);
        }
        if chance(rng, 2) {
            then = spoil(rng, &then);
        }
        if chance(rng, 5) && !then.trim().is_empty() {
            return then;
        }
        let spaces = [space(rng), space(rng), space(rng), space(rng)];
        format!("{}{when}{}=>{}{then}{}", spaces[0], spaces[1], spaces[2], spaces[3])
    }

    fn object(&self, rng: &mut Rng) -> Value {
        let mut condition = Map::new();
        let text = |rng: &mut Rng, then| match rng.u8(..10) {
            0 => pick(rng, &["", " "]).to_owned(),
            1 if chance(rng, 8) => {
                let whole = self.side(rng, then);
                spoil(rng, &whole)
            }
            _ => self.side(rng, then),
        };
        match rng.u8(..6) {
            0 => {}
            1 => {
                condition.insert("from".to_owned(), json!({}));
            }
            _ => {
                condition.insert("from".to_owned(), json!({ "match": text(rng, false) }));
            }
        }
        if chance(rng, 96) {
            let to: Vec<Value> = (0..pick(rng, &[0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 2, 3, 2, 3]))
                .map(|_| {
                    let mut destination = Map::new();
                    if chance(rng, 92) {
                        destination.insert("match".to_owned(), text(rng, true).into());
                    }
                    if chance(rng, 60) {
                        let weights =
                            [json!(0), json!(1), json!(2), json!(100), json!(900), json!(3)];
                        let wrong = [json!(-1), json!("1"), json!(1.5)];
                        let from = if chance(rng, 1) { &wrong[..] } else { &weights[..] };
                        let weight = from[rng.usize(..from.len())].clone();
                        destination.insert("weight".to_owned(), weight);
                    }
                    if chance(rng, 1) {
                        destination.insert("wieght".to_owned(), json!(1));
                    }
                    destination.into()
                })
                .collect();
            condition.insert("to".to_owned(), to.into());
        }
        if chance(rng, 1) {
            condition.insert(pick(rng, &["form", "when", "weight"]).to_owned(), json!({}));
        }
        condition.into()
    }

    fn side(&self, rng: &mut Rng, then: bool) -> String {
        let space = |rng: &mut Rng| pick(rng, &["", "", "", " ", "  ", "\t"]);
        let mut keys: Vec<String> = Vec::new();
        let mut text = String::new();
        for number in 0..pick(rng, &[1, 1, 1, 2, 2, 3]) {
            if number > 0 {
                text += &format!("{}&{}", space(rng), space(rng));
            }
            let key = if chance(rng, 25) && !keys.is_empty() {
                keys[rng.usize(..keys.len())].clone()
            } else {
                self.key(rng, then)
            };
            keys.push(key.clone());
            let prefix = match rng.u8(..12) {
                0 => pick(rng, &["consumer.", "provider.consumer."]),
                1 => "provider.",
                _ => "",
            };
            let operator = pick(rng, &["=", "=", "=", "!="]);
            text += &format!("{prefix}{key}{}{operator}", space(rng));
            for number in 0..pick(rng, &[1, 1, 2, 2, 3]) {
                if number > 0 {
                    text += &format!("{},", space(rng));
                }
                text += &format!("{}{}", space(rng), self.value(rng, &key, then));
            }
        }
        text
    }

    fn key(&self, rng: &mut Rng, then: bool) -> String {
        let invocation = [
            "method",
            "method",
            "methods",
            "arguments[0]",
            "arguments[1]",
            "arguments[0].inner",
            "arguments[1].a.b",
            "arguments[7]",
            "arguments[99999999999999999999]",
            "attachments[n]",
            "attachments[env]",
            "attachments[键]",
            "attachments[a.b]",
            "attachments[none]",
            "arguments",
            "attachments",
        ];
        if chance(rng, if then { 12 } else { 45 }) {
            return pick(rng, &invocation).to_owned();
        }
        match rng.u8(..30) {
            0 => "missing".to_owned(),
            1 if then => "address".to_owned(),
            _ => pick(rng, PARAMETERS).to_owned(),
        }
    }

    fn value(&self, rng: &mut Rng, key: &str, then: bool) -> String {
        let plain: &[&str] = match key {
            "host" => HOSTS,
            "port" => &["7", "20880", "20881"],
            "address" => &["10.0.0.1:7", "10.0.0.1:20880", "h1:20881", "10.0.0.2:20880"],
            "application" => APPLICATIONS,
            "region" | "ключ" | "attachments[键]" => REGIONS,
            "env" | "区" | "attachments[env]" => &ENVS[..3],
            "method" | "methods" => METHODS,
            _ => NUMBERS,
        };
        let likely = self.actual(rng, key, then);
        if let Some(likely) = &likely
            && chance(rng, 40)
        {
            return likely.clone();
        }
        let plainly = |rng: &mut Rng| likely.clone().unwrap_or_else(|| pick(rng, plain).to_owned());
        match rng.u8(..20) {
            0 => "*".to_owned(),
            1..=3 => {
                let whole: Vec<char> = plainly(rng).chars().collect();
                let from = rng.usize(..=whole.len());
                let to = rng.usize(from..=whole.len());
                whole[..from].iter().chain(&['*']).chain(&whole[to..]).collect()
            }
            4 => pick(rng, &["*0*1", "10.*.*", "**", "*.*", "*oo", "g*o", "1*1", "$*"]).to_owned(),
            5..=7 => {
                let numbers =
                    ["1", "5", "9", "10", "-3", "0", "80", "20880", "9223372036854775807"];
                match rng.u8(..3) {
                    0 => format!("{}~", pick(rng, &numbers)),
                    1 => format!("~{}", pick(rng, &numbers)),
                    _ => format!("{}~{}", pick(rng, &numbers), pick(rng, &numbers)),
                }
            }
            8..=10 if then => format!(
                "${}",
                if chance(rng, 60) && !key.contains('[') {
                    key
                } else {
                    pick(rng, &["host", "env", "region", "n", "none", "ключ"])
                }
            ),
            8 => pick(rng, &["$host", "$env", "$none"]).to_owned(),
            _ => pick(rng, plain).to_owned(),
        }
    }

    /// The value that `key` has in the request or in one of the candidates.
    fn actual(&self, rng: &mut Rng, key: &str, then: bool) -> Option<String> {
        let invocation = &self.case["invocation"];
        let value = match key {
            "method" | "methods" => &invocation["method"],
            "arguments[0]" | "arguments[0].inner" => &invocation["args"][0],
            "arguments[1]" | "arguments[1].a.b" => &invocation["args"][1],
            _ => match key.strip_prefix("attachments[").and_then(|rest| rest.strip_suffix(']')) {
                Some(name) => &invocation["attachments"][name],
                None if then => {
                    let providers = self.case["providers"].as_array()?;
                    &providers.get(rng.usize(..6) % providers.len().max(1))?[key]
                }
                None => &self.case["consumer"][key],
            },
        };
        match value {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }
}

/// A side with one mistake that keeps it from being parsed.
fn spoil(rng: &mut Rng, side: &str) -> String {
    let whole = if side.is_empty() { "env=gray" } else { side };
    match rng.u8(..16) {
        0 => "host".to_owned(),
        1 => format!("{whole}&host"),
        2 => format!("{whole}&"),
        3 => format!("&{whole}"),
        4 => format!("{whole},"),
        5 => whole.replacen('=', "==", 1),
        6 => whole.replacen('=', "!==", 1),
        7 => format!("{whole}&&env=g"),
        8 => "host=".to_owned(),
        9 => "host=,h1".to_owned(),
        10 => "host,h1=h1".to_owned(),
        11 => "=h1".to_owned(),
        12 => "host!h1".to_owned(),
        13 => "host!=".to_owned(),
        14 => pick(rng, &["consumer.=h1", "n=1~9223372036854775808", "n!=-9223372036854775809~"])
            .to_owned(),
        _ => format!("{whole}&host=h1,,h1"),
    }
}

/// Cases for the distribution of draws: overlapping and empty destinations, weight 0, several
/// conditions one after another, thirds and very unequal shares.
pub(crate) fn weighted() -> Vec<Value> {
    let providers: Vec<Value> = ["a", "a", "b", "b", "b", "c"]
        .iter()
        .enumerate()
        .map(|(at, zone)| {
            let side = if at % 2 == 0 { "even" } else { "odd" };
            json!({"host": format!("10.0.0.{at}"), "port": 20880, "zone": zone, "side": side})
        })
        .collect();
    let to = |list: &[(&str, u64)]| -> Value {
        let list = list.iter().map(|(rule, weight)| json!({"match": rule, "weight": weight}));
        json!({"to": list.collect::<Vec<_>>()})
    };
    let rules = [
        vec![to(&[("zone=a", 1), ("zone=b", 1), ("zone=c", 1)])],
        vec![to(&[("zone=a", 0), ("zone=b", 3), ("zone=c", 7), ("zone=d", 90)])],
        vec![to(&[("zone=a", 1), ("zone=b", 9_999)])],
        vec![to(&[("zone=a", 5), ("zone!=b,c", 2), ("zone=*", 3)])],
        vec![
            to(&[("zone=a", 1), ("zone=b", 2)]),
            to(&[("side=even", 1), ("side=odd", 3)]),
            to(&[("side=even", 1), ("zone=b", 1)]),
        ],
        vec![to(&[("side=even", 1), ("side=odd", 1)]), to(&[("zone=a", 1), ("zone=b", 1)])],
        (0..4).map(|_| to(&[("zone=a", 1), ("", 1)])).collect(),
    ];
    let case = |conditions: Vec<Value>| {
        json!({
            "id": 0, "kind": "condition-v3.1", "src": "R",
            "rule": {"conditions": conditions},
            "consumer": {"host": "10.1.0.1"}, "invocation": {}, "providers": providers,
        })
    };
    rules.into_iter().map(case).collect()
}

/// The smallest case reached from `case` by leaving parts out while `fails` stays true.
pub(crate) fn shrink(mut case: Value, fails: impl Fn(&Value) -> bool) -> Value {
    loop {
        let smaller = ["/rule", "/consumer", "/invocation", "/providers"]
            .iter()
            .flat_map(|part| {
                let within = case.pointer(part).map(smaller).unwrap_or_default();
                within.into_iter().map(|value| {
                    let mut next = case.clone();
                    if let Some(place) = next.pointer_mut(part) {
                        *place = value;
                    }
                    next
                })
            })
            .find(|next| fails(next));
        match smaller {
            Some(next) => case = next,
            None => return case,
        }
    }
}

/// Every value that is one step smaller than `value`.
fn smaller(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => (0..items.len())
            .flat_map(|at| {
                let mut without = items.clone();
                without.remove(at);
                let within = smaller(&items[at]).into_iter().map(move |item| {
                    let mut next = items.clone();
                    next[at] = item;
                    Value::Array(next)
                });
                std::iter::once(Value::Array(without)).chain(within)
            })
            .collect(),
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, field)| {
                let mut without = fields.clone();
                without.remove(key);
                let within = smaller(field).into_iter().map(move |field| {
                    let mut next = fields.clone();
                    next.insert(key.clone(), field);
                    Value::Object(next)
                });
                std::iter::once(Value::Object(without)).chain(within)
            })
            .collect(),
        Value::String(text) => text
            .char_indices()
            .flat_map(|(at, char)| {
                let to_end = (at > 0).then(|| text[..at].to_owned());
                let without = format!("{}{}", &text[..at], &text[at + char.len_utf8()..]);
                to_end.into_iter().chain([without])
            })
            .map(Value::String)
            .collect(),
        _ => Vec::new(),
    }
}
