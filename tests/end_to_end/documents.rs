//! SQL in the documents can be typed as it stands: the blocks of a document are run in their order, in a database that has
//! been set up. (Their command lines are checked by `tests/tidy`.)

use std::fs;
use std::path::PathBuf;

use crate::kit::*;

#[test]
fn sql_in_the_documents_runs() {
    let postgres = Postgres::start_major(MAJOR);
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a readable document");
        let blocks = sql_blocks(&text);
        if blocks.is_empty() {
            continue;
        }
        let scene = Scene::new(&postgres, Kafka::shared(), Table::Walpost);
        let sql = scene.sql();
        for (line, block) in blocks {
            if let Err(error) = sql.try_execute(&block) {
                panic!("{}:{line}: {}\n{block}", document.display(), explain(&error));
            }
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![repository().join("docs")], vec![repository().join("README.md")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                found.push(path);
            }
        }
    }
    found.retain(|path| path.is_file());
    found.sort();
    found
}

/// The blocks marked `sql`, each with the line on which it begins.
fn sql_blocks(text: &str) -> Vec<(usize, String)> {
    let (mut blocks, mut open) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        match line.trim() {
            "```sql" => {
                open = true;
                blocks.push((number + 2, String::new()));
            }
            "```" => open = false,
            _ if open => blocks.last_mut().expect("just begun").1 += &format!("{line}\n"),
            _ => {}
        }
    }
    blocks
}
