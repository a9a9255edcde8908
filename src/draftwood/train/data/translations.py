"""Sentences in other languages to be translated into English: forms with slots, so that few words make many sentences.

    {who} hat {day} {done}, {clause}.   ->   Der Minister hat am Montag den Vertrag unterschrieben, ohne zu zögern.

Whatever stands in a slot fits every form that has the slot. Numbers are the same in all languages.
"""

import random
import re

LANGUAGES = ("German", "French", "Spanish", "Italian", "Portuguese", "Dutch")

# The first line of each holds whole forms, the others one slot each.
_FORMS: dict[str, dict[str, str]] = {
    "German": {
        "forms": "{who} hat {day} {done}, {clause}.|{who} hat {day} {done}.|{org} will in {city} bis {year} rund {n} "
        "{made} schaffen.|Nach Angaben {whose} sind die {values} im Vergleich zum Vorjahr um {percent} Prozent "
        "{moved}.|In {city} wurde {day} {passive}.|„{quote}“, sagte {who} {day} in {city}.|Wer {wish}, muss {must}.|"
        "Die Studie zeigt, dass {that}.|{who} bezweifelt, dass {that}.|Ich habe {bought} in {city} gekauft, aber "
        "{trouble}.|Könnten Sie mir bitte sagen, {asked}?|Im Finale gewann die Mannschaft aus {city} mit {few} zu "
        "{few} gegen {city}.|Der Film erzählt die Geschichte {tale}.|Das alte Gebäude am {place} stammt aus dem "
        "{century}. Jahrhundert und wird heute als {use} genutzt.|Obwohl es seit Tagen regnete, kamen mehr als {n} "
        "Menschen nach {city}.|{org} {plans}, {clause}.|Seit {few} Jahren lebt {who} mit der Familie in {city}.|Bis "
        "zum Ende des Jahres sollen {n} {made} fertig sein, aber noch fehlt das Geld.",
        "who": "der Minister|die Bürgermeisterin|eine Sprecherin der Polizei|der Trainer|die Forscherin|der "
        "Vorsitzende des Vereins|die Leiterin der Schule|ein Anwohner|der Geschäftsführer|meine Großmutter|unser "
        "Nachbar|die junge Ärztin|der Richter|ein Mitarbeiter des Museums|die Schriftstellerin|der Landwirt",
        "org": "die Regierung|das Unternehmen|die Stadtverwaltung|der Verband|die Universität|das Gericht|die Bank|"
        "der Verein|die Kommission|das Krankenhaus|die Bahn|der Flughafen",
        "whose": "der Behörde|des Ministeriums|der Bank|des Verbandes|der Stadt|des Instituts|der Gewerkschaft",
        "city": "Hamburg|Leipzig|Wien|Zürich|Bremen|Graz|Dresden|Köln|Freiburg|Linz|Rostock|Basel|Erfurt|Münster|"
        "Salzburg",
        "day": "am Montag|am Dienstagabend|am Mittwoch|am Donnerstag|am Freitagmorgen|am Wochenende|gestern|in der "
        "vergangenen Woche|zu Beginn des Monats|heute Nachmittag",
        "done": "einen neuen Plan vorgestellt|die Entscheidung verteidigt|drei Fragen gestellt|den Vertrag "
        "unterschrieben|vor höheren Kosten gewarnt|um mehr Geduld gebeten|die Ergebnisse der Untersuchung "
        "veröffentlicht|lange auf eine Antwort gewartet|den Vorschlag abgelehnt|einen Brief an die Eltern "
        "geschrieben|eine schnelle Lösung versprochen|über die Zukunft des Werks gesprochen|alle Termine abgesagt",
        "plans": "plant eine neue Strecke nach {city}|sucht dringend Fachkräfte|hat die Preise gesenkt|rechnet mit "
        "weniger Besuchern|muss in diesem Jahr {n} Millionen Euro sparen|prüft den Antrag noch einmal|schließt zwei "
        "Standorte",
        "clause": "obwohl die Kritik zunimmt|weil die Preise gestiegen sind|bevor der Winter beginnt|ohne die Gründe "
        "zu nennen|nachdem viele Bürger protestiert hatten|während die Verhandlungen noch laufen|um Zweifel "
        "auszuräumen|da das Geld nicht reicht|wie aus einem Bericht hervorgeht",
        "made": "Arbeitsplätze|Wohnungen|Plätze für Studierende|Parkplätze|Ladestationen|Büros",
        "values": "Preise|Mieten|Einnahmen|Ausgaben|Besucherzahlen|Löhne|Exporte",
        "moved": "gestiegen|gesunken|leicht gestiegen|deutlich gesunken",
        "passive": "ein neues Museum eröffnet|eine alte Brücke gesperrt|ein seltenes Gemälde gefunden|über den "
        "Haushalt abgestimmt|der Marathon abgesagt|ein Denkmal enthüllt|gegen die Pläne protestiert|ein Mann nach "
        "einem Unfall ins Krankenhaus gebracht",
        "quote": "Wir müssen jetzt schnell handeln|Das ist ein wichtiger Schritt für die ganze Region|Niemand hat "
        "mit so vielen Gästen gerechnet|So etwas habe ich noch nie erlebt|Am Ende zählt nur das Ergebnis|Die Kosten "
        "sind höher als erwartet|Wir wissen noch nicht, was passiert ist",
        "wish": "im Ausland arbeiten möchte|ein Haus kaufen will|mit dem Zug reist|einen Antrag stellt|eine Wohnung "
        "in {city} sucht|die Prüfung bestehen will",
        "must": "mit langen Wartezeiten rechnen|mehrere Formulare ausfüllen|sich früh anmelden|alle Unterlagen "
        "vorlegen|mindestens {n} Euro bezahlen|viel Geduld haben",
        "that": "viele Jugendliche zu wenig schlafen|sich das Klima in den Bergen schneller verändert als im Tal|"
        "Kinder durch Spielen besser lernen|fast {percent} Prozent der Befragten keine Zeitung lesen|ältere Menschen "
        "öfter allein wohnen|der Verkehr in den Städten weiter zunimmt|gesundes Essen teurer geworden ist",
        "bought": "diese Schuhe|den Tisch|ein gebrauchtes Auto|die Karten für das Konzert|einen Mantel|zwei Bücher",
        "trouble": "leider passt die Größe nicht|der Preis war viel zu hoch|bisher ist nichts angekommen|etwas ist "
        "kaputtgegangen|es fehlt noch die Rechnung",
        "asked": "wann der nächste Zug nach {city} fährt|wo ich eine Apotheke finde|wie lange das Museum heute "
        "geöffnet ist|ob es noch freie Zimmer gibt|wie viel eine Fahrkarte nach {city} kostet",
        "tale": "einer jungen Ärztin, die nach vielen Jahren in ihr Dorf zurückkehrt|eines Fischers, der eine "
        "Flaschenpost findet|zweier Brüder, die sich um ein Erbe streiten|eines Mädchens, das nicht mehr sprechen "
        "will",
        "place": "Marktplatz|Hafen|Bahnhof|Fluss|Stadtrand",
        "use": "Bibliothek|Schule|Theater|Hotel|Lagerhaus",
    },
    "French": {
        "forms": "{who} a {done} {day}, {clause}.|{who} a {done} {day}.|Selon {source}, les {values} ont {moved} de "
        "{percent} % en un an.|À {city}, {event}.|« {quote} », a déclaré {who} {day}.|{org} prévoit de {plan} d'ici "
        "{year}.|L'étude montre que {that}.|Pourriez-vous me dire {asked} ?|J'ai acheté {bought} à {city}, mais "
        "{trouble}.|Plus de {n} personnes sont venues à {city} {clause}.|Le film raconte l'histoire {tale}.",
        "who": "la ministre|le maire|une voisine|le directeur de l'école|la chercheuse|notre médecin|le porte-parole|"
        "un agriculteur|la romancière|l'entraîneur",
        "org": "le gouvernement|cette entreprise|la ville|l'université|le musée|la banque",
        "done": "présenté un nouveau projet|défendu cette décision|reçu une longue lettre|signé le contrat|refusé la "
        "proposition|demandé plus de temps|annulé tous les rendez-vous|publié les résultats de l'enquête",
        "day": "lundi|mardi soir|mercredi|jeudi matin|la semaine dernière|hier|au début du mois",
        "clause": "malgré le mauvais temps|parce que les prix augmentent|avant le début de l'hiver|sans donner de "
        "raisons|après plusieurs semaines de discussion|alors que le pont est fermé",
        "source": "le ministère|un rapport récent|la banque centrale|les syndicats",
        "values": "prix|loyers|salaires|dépenses|ventes",
        "moved": "augmenté|baissé",
        "city": "Lyon|Nantes|Bruxelles|Genève|Lille|Toulouse|Dijon|Québec|Strasbourg",
        "event": "un incendie a détruit un entrepôt|un nouveau pont a été inauguré|des centaines d'habitants ont "
        "manifesté|une rue entière est restée sans électricité",
        "quote": "Nous devons agir vite|C'est une grande chance pour la région|Personne ne s'attendait à un tel "
        "succès|Je n'ai jamais vu cela",
        "plan": "construire {n} logements|créer {n} emplois|réduire ses dépenses|ouvrir une deuxième école|planter "
        "{n} arbres",
        "that": "beaucoup d'adolescents ne dorment pas assez|les enfants apprennent mieux en jouant|{percent} % des "
        "habitants ne lisent plus de journaux|la circulation continue d'augmenter",
        "asked": "où se trouve la gare|à quelle heure ferme le musée|combien coûte un billet pour {city}|s'il reste "
        "des chambres libres",
        "bought": "ces chaussures|une voiture d'occasion|deux livres anciens|un manteau",
        "trouble": "la taille ne convient pas|le prix était trop élevé|je n'ai encore rien reçu",
        "tale": "d'une femme qui retourne dans son village|de deux frères qui se disputent un héritage|d'un pêcheur "
        "qui trouve une lettre",
    },
    "Spanish": {
        "forms": "{who} {done} {day}, {clause}.|{who} {done} {day}.|Según {source}, los {values} {moved} un "
        "{percent} % en el último año.|En {city}, {event}.|«{quote}», dijo {who} {day}.|{org} quiere {plan} antes de "
        "{year}.|El estudio demuestra que {that}.|¿Podría decirme {asked}?|Compré {bought} en {city}, pero "
        "{trouble}.|Más de {n} personas llegaron a {city} {clause}.",
        "who": "la ministra|el alcalde|mi vecina|el director del museo|una investigadora|nuestro médico|el "
        "entrenador|la escritora",
        "org": "el gobierno|esta empresa|la universidad|el ayuntamiento|el hospital",
        "done": "presentó un nuevo plan|defendió la decisión|recibió una carta muy larga|firmó el contrato|rechazó "
        "la propuesta|pidió más tiempo|canceló todas las citas",
        "day": "el lunes|el martes por la tarde|el jueves|la semana pasada|ayer|a principios de mes",
        "clause": "a pesar del mal tiempo|porque los precios han subido|antes de que empiece el invierno|sin "
        "explicar los motivos|después de varias semanas de debate",
        "source": "el ministerio|un informe reciente|el banco central|los sindicatos",
        "values": "precios|alquileres|salarios|gastos",
        "moved": "subieron|bajaron",
        "city": "Sevilla|Bogotá|Lima|Valencia|Montevideo|Granada|Quito|Bilbao",
        "event": "un incendio destruyó una fábrica|se inauguró un nuevo puente|cientos de vecinos salieron a la "
        "calle|se canceló el partido",
        "quote": "Tenemos que actuar pronto|Es una gran oportunidad para la región|Nunca había visto algo así|Nadie "
        "esperaba tanta gente",
        "plan": "construir {n} viviendas|crear {n} empleos|reducir sus gastos|abrir otra escuela",
        "that": "muchos jóvenes duermen poco|los niños aprenden mejor jugando|el {percent} % de la población vive en "
        "ciudades|el tráfico sigue creciendo",
        "asked": "dónde está la estación|a qué hora cierra el museo|cuánto cuesta un billete a {city}|si quedan "
        "habitaciones libres",
        "bought": "estos zapatos|un coche usado|dos libros antiguos|un abrigo",
        "trouble": "la talla no es correcta|el precio era demasiado alto|todavía no ha llegado nada",
    },
    "Italian": {
        "forms": "{who} ha {done} {day}, {clause}.|{who} ha {done} {day}.|Secondo {source}, i {values} sono {moved} "
        "del {percent} % in un anno.|A {city} {event}.|«{quote}», ha detto {who} {day}.|Lo studio mostra che {that}.|"
        "Potrebbe dirmi {asked}?",
        "who": "la ministra|il sindaco|la mia vicina|il direttore del museo|una ricercatrice|il nostro medico|"
        "l'allenatore",
        "done": "presentato un nuovo progetto|difeso la decisione|ricevuto una lunga lettera|firmato il contratto|"
        "rifiutato la proposta|chiesto più tempo",
        "day": "lunedì|martedì sera|giovedì mattina|la settimana scorsa|ieri",
        "clause": "nonostante il brutto tempo|perché i prezzi sono aumentati|prima che cominci l'inverno|senza "
        "spiegare i motivi",
        "source": "il ministero|un rapporto recente|la banca centrale",
        "values": "prezzi|salari|costi|consumi",
        "moved": "aumentati|diminuiti",
        "city": "Torino|Bologna|Palermo|Trieste|Verona|Genova",
        "event": "è stato inaugurato un nuovo ponte|un incendio ha distrutto un magazzino|centinaia di persone hanno "
        "protestato",
        "quote": "Dobbiamo agire in fretta|È una grande occasione per tutti|Non ho mai visto niente di simile",
        "that": "molti ragazzi dormono poco|i bambini imparano meglio giocando|il traffico continua a crescere",
        "asked": "dov'è la stazione|a che ora chiude il museo|quanto costa un biglietto per {city}",
    },
    "Portuguese": {
        "forms": "{who} {done} {day}, {clause}.|{who} {done} {day}.|Segundo {source}, os {values} {moved} {percent} "
        "% em um ano.|Em {city}, {event}.|O estudo mostra que {that}.|Poderia dizer-me {asked}?",
        "who": "a ministra|o prefeito|minha vizinha|o diretor da escola|uma pesquisadora|o treinador",
        "done": "apresentou um novo plano|defendeu a decisão|recebeu uma longa carta|assinou o contrato|recusou a "
        "proposta",
        "day": "na segunda-feira|na terça à noite|ontem|na semana passada",
        "clause": "apesar do mau tempo|porque os preços subiram|antes do inverno|sem explicar os motivos",
        "source": "o ministério|um relatório recente|o banco central",
        "values": "preços|salários|gastos",
        "moved": "subiram|caíram",
        "city": "Lisboa|Recife|Coimbra|Salvador|Braga",
        "event": "uma nova ponte foi inaugurada|um incêndio destruiu um armazém|centenas de moradores protestaram",
        "that": "muitos jovens dormem pouco|as crianças aprendem melhor brincando|o trânsito continua a crescer",
        "asked": "onde fica a estação|a que horas fecha o museu|quanto custa uma passagem para {city}",
    },
    "Dutch": {
        "forms": "{who} heeft {day} {done}, {clause}.|{who} heeft {day} {done}.|Volgens {source} zijn de {values} in "
        "een jaar met {percent} procent {moved}.|In {city} is {day} {passive}.|Uit het onderzoek blijkt dat {that}.|"
        "Kunt u mij zeggen {asked}?",
        "who": "de minister|de burgemeester|mijn buurvrouw|de directeur van de school|een onderzoekster|de trainer",
        "done": "een nieuw plan gepresenteerd|de beslissing verdedigd|een lange brief gekregen|het contract getekend|"
        "het voorstel afgewezen",
        "day": "maandag|dinsdagavond|gisteren|vorige week",
        "clause": "hoewel het weer slecht was|omdat de prijzen zijn gestegen|zonder de redenen te noemen|voordat de "
        "winter begint",
        "source": "het ministerie|een nieuw rapport|de centrale bank",
        "values": "prijzen|huren|lonen|kosten",
        "moved": "gestegen|gedaald",
        "city": "Utrecht|Gent|Groningen|Leiden|Antwerpen",
        "passive": "een nieuwe brug geopend|een oud schilderij gevonden|tegen de plannen geprotesteerd",
        "that": "veel jongeren te weinig slapen|kinderen beter leren door te spelen|het verkeer blijft groeien",
        "asked": "waar het station is|hoe laat het museum sluit|hoeveel een kaartje naar {city} kost",
    },
}
FORMS = {name: {slot: text.split("|") for slot, text in slots.items()} for name, slots in _FORMS.items()}


def sentence(rng: random.Random) -> tuple[str, str]:
    """(language, one or two sentences in it); German half of the time."""
    language = "German" if rng.random() < 0.5 else rng.choice(LANGUAGES)
    slots, used = FORMS[language], set[str]()
    forms = rng.sample(slots["forms"], rng.choice([1, 1, 2]))
    return language, " ".join(_first_large(_filled(form, slots, used, rng)) for form in forms)


def _filled(form: str, slots: dict[str, list[str]], used: set[str], rng: random.Random) -> str:
    """Every slot by a word that was not used before; words may have slots of their own."""

    def word(found: re.Match[str]) -> str:
        name = found[1]
        if name in _NUMBERS:
            return f"{rng.choice(_NUMBERS[name])}"
        left = [word for word in slots[name] if word not in used] or slots[name]
        chosen = rng.choice(left)
        used.add(chosen)
        return _filled(chosen, slots, used, rng)

    return re.sub(r"\{(\w+)\}", word, form)


_NUMBERS: dict[str, range] = {
    "n": range(20, 1000, 10),
    "few": range(2, 10),
    "percent": range(2, 60),
    "year": range(2021, 2041),
    "century": range(12, 20),
}


def _first_large(text: str) -> str:
    """A capital where the sentence begins, behind whatever sign stands there."""
    return re.sub(r"^\W*\w", lambda found: found[0].upper(), text)
