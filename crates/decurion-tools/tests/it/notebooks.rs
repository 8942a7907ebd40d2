//! Notebooks: read as cells, changed one cell at a time, the rest left as it is.

use serde_json::{Value, json};

use crate::stage::Stage;

const NOTEBOOK: &str = r##"{
 "cells": [
  {
   "cell_type": "markdown",
   "id": "intro",
   "metadata": {"custom": true},
   "source": [
    "# Title\n",
    "text"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 3,
   "id": "sum",
   "metadata": {},
   "outputs": [
    {
     "name": "stdout",
     "output_type": "stream",
     "text": "2\n"
    }
   ],
   "source": "print(1 + 1)"
  }
 ],
 "metadata": {
  "zeta": 1,
  "alpha": 2
 },
 "nbformat": 4,
 "nbformat_minor": 5
}
"##;

async fn stage() -> Stage {
    let mut stage = Stage::new();
    stage.file("n.ipynb", NOTEBOOK);
    let text = stage.ok("Read", json!({"file_path": "n.ipynb"})).await;
    assert_eq!(
        text,
        "<cell id=\"intro\" type=\"markdown\">\n# Title\ntext\n</cell>\n\
         <cell id=\"sum\" type=\"code\" language=\"python\">\nprint(1 + 1)\n</cell>\n\
         <output>\n2\n</output>\n"
    );
    stage
}

fn cells(stage: &Stage) -> Vec<Value> {
    let notebook: Value = serde_json::from_str(&stage.content("n.ipynb")).unwrap();
    notebook["cells"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_cell_is_replaced_and_only_it() {
    let mut stage = stage().await;
    let input = json!({"notebook_path": "n.ipynb", "cell_id": "sum", "new_source": "a\nb"});
    let output = stage.run("NotebookEdit", input).await;
    assert_eq!(output.content.text(), "Changed cell sum of n.ipynb.");
    let structured = output.structured.unwrap();
    assert_eq!((&structured["cell_id"], &structured["old_source"]), (&json!("sum"), &json!("print(1 + 1)")));
    let before = NOTEBOOK
        .replace("\"source\": \"print(1 + 1)\"", "\"source\": \"a\\nb\"")
        .replace("\"execution_count\": 3", "\"execution_count\": null")
        .replace(
            "[\n    {\n     \"name\": \"stdout\",\n     \"output_type\": \"stream\",\n     \"text\": \"2\\n\"\n    }\n   ]",
            "[]",
        )
        .replace("{\"custom\": true}", "{\n    \"custom\": true\n   }");
    assert_eq!(stage.content("n.ipynb"), before);
}

#[tokio::test]
async fn cells_are_inserted_deleted_and_turned() {
    let mut stage = stage().await;
    let edit = |mode: &str, cell: Option<&str>, kind: Option<&str>| {
        let mut input = json!({"notebook_path": "n.ipynb", "edit_mode": mode, "new_source": "x\ny"});
        if let Some(cell) = cell {
            input["cell_id"] = cell.into();
        }
        if let Some(kind) = kind {
            input["cell_type"] = kind.into();
        }
        input
    };
    stage.ok("NotebookEdit", edit("insert", None, Some("markdown"))).await;
    stage.ok("NotebookEdit", edit("insert", Some("intro"), Some("code"))).await;
    let now = cells(&stage);
    assert_eq!(now.len(), 4);
    assert_eq!((&now[0]["cell_type"], &now[0]["source"]), (&json!("markdown"), &json!(["x\n", "y"])));
    assert_eq!((&now[2]["cell_type"], &now[2]["outputs"]), (&json!("code"), &json!([])));
    assert_eq!(now[2]["id"].as_str().unwrap().len(), 8);
    assert!(now[0].get("outputs").is_none());

    stage.ok("NotebookEdit", edit("delete", Some("intro"), None)).await;
    stage.ok("NotebookEdit", edit("replace", Some("sum"), Some("markdown"))).await;
    let now = cells(&stage);
    assert_eq!(now.len(), 3);
    assert_eq!(now[2], json!({"cell_type": "markdown", "id": "sum", "metadata": {}, "source": "x\ny"}));
}

#[tokio::test]
async fn mistakes_are_said() {
    let mut stage = stage().await;
    let text = stage
        .fails("NotebookEdit", json!({"notebook_path": "n.ipynb", "cell_id": "nope", "new_source": ""}))
        .await;
    assert!(text.contains("no cell \"nope\"; its cells are: intro, sum"), "{text}");
    stage.file("n.ipynb", NOTEBOOK.replace("Title", "Other"));
    let text = stage
        .fails("NotebookEdit", json!({"notebook_path": "n.ipynb", "cell_id": "sum", "new_source": ""}))
        .await;
    assert!(text.contains("changed since it was read"), "{text}");
    stage.file("bad.ipynb", "{]");
    let text = stage.fails("Read", json!({"file_path": "bad.ipynb"})).await;
    assert!(text.contains("not valid JSON"), "{text}");
    assert_eq!(stage.ok("Read", json!({"file_path": "bad.ipynb", "limit": 1})).await, "1\t{]");
    let text = stage
        .fails("NotebookEdit", json!({"notebook_path": "none.ipynb", "cell_id": "a", "new_source": ""}))
        .await;
    assert!(text.contains("no such file"), "{text}");
}

#[tokio::test]
async fn cells_without_ids_are_named_by_their_place() {
    let mut stage = Stage::new();
    stage.file("n.ipynb", r#"{"cells":[{"cell_type":"code","source":"a"}],"nbformat":4,"nbformat_minor":2}"#);
    let text = stage.ok("Read", json!({"file_path": "n.ipynb"})).await;
    assert!(text.starts_with("<cell id=\"cell-0\""), "{text}");
    stage
        .ok("NotebookEdit", json!({"notebook_path": "n.ipynb", "cell_id": "cell-0", "new_source": "b"}))
        .await;
    assert_eq!(
        stage.content("n.ipynb"),
        r#"{"cells":[{"cell_type":"code","source":"b","outputs":[],"execution_count":null}],"nbformat":4,"nbformat_minor":2}"#
    );
}
