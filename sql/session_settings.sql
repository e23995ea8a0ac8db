-- session_settings: return the settings of this session beside the requested ones.
-- params:  settings json
-- returns: one row for each setting (name, setting, wanted)
-- index:   none
-- locks:   none
-- called by: database.conninfo.verify_settings
-- why:     a pooler drops start-up options without an error. set_config puts the wanted value into the form in
--          which the server shows it; made local, it ends with this statement.
--          A role is shown as it was given.
SELECT
    key AS name,
    current_setting(key) AS setting,
    CASE WHEN key = 'role' THEN value ELSE set_config(key, value, true) END AS wanted
FROM json_each_text(%(settings)s::json);
